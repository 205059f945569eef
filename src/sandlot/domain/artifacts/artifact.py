"""Artifacts: files that stay after their session has ended, and the contract to use them."""

from __future__ import annotations

import mimetypes
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from sandlot.domain.errors import NotFound

MAX_PATH_BYTES: Final = 4096
# Files that one call keeps, and that one session has kept. For more, keep an archive.
MAX_FILES: Final = 1000
# What a server keeps unless its settings say otherwise.
DEFAULT_MAX_FILE_BYTES: Final = 256 * 1024 * 1024
DEFAULT_MAX_SESSION_BYTES: Final = 1024 * 1024 * 1024
DEFAULT_MAX_TENANT_BYTES: Final = 10 * 1024 * 1024 * 1024
DEFAULT_MAX_COUNT: Final = 10_000
DEFAULT_MAX_AGE_S: Final = 30 * 24 * 3600.0
UNKNOWN_TYPE: Final = "application/octet-stream"
# Only Python's own table: that of the machine would make the same name mean different things.
_TYPES: Final = mimetypes.MimeTypes()
_PACKED: Final = {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that stays after its session has ended. It never changes.

    id: its id.
    session_id: the session whose file it was.
    created_at: when it was kept, in seconds since the epoch.
    path: its path in the session, relative to ``/workspace``.
    size: its size in bytes.
    sha256: the SHA-256 digest of its content, in hexadecimal.
    media_type: what its name says that it contains, such as ``image/png``.
    tenant: whom it belongs to.
    thread: the conversation of its session, if any.
    """

    id: str
    session_id: str
    created_at: float
    path: str
    size: int
    sha256: str
    media_type: str
    tenant: str
    thread: str | None = None


class NotKept(StrEnum):
    """Why a file was not kept.

    too_large: it is larger than the server keeps.
    session_full: the session has already kept as much as it may.
    too_many: more files match than one call keeps.
    unreadable: the sandbox's user may not read it, or it changed its type while it was read.
    name: its name is not valid text, or too long.
    """

    TOO_LARGE = "too_large"
    SESSION_FULL = "session_full"
    TOO_MANY = "too_many"
    UNREADABLE = "unreadable"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class RefusedFile:
    """A file that matched and was not kept.

    path: its path, relative to ``/workspace``.
    reason: why, in one word.
    message: why, in words.
    """

    path: str
    reason: NotKept
    message: str


@dataclass(frozen=True, slots=True)
class KeptArtifacts:
    """What a call kept.

    kept: the artifacts. A file that was kept before and has not changed is the artifact that it was.
    unmatched: the paths that no file matched.
    refused: the files that matched and were not kept.
    """

    kept: tuple[Artifact, ...] = ()
    unmatched: tuple[str, ...] = ()
    refused: tuple[RefusedFile, ...] = ()


@dataclass(frozen=True, slots=True)
class ArtifactPage:
    """Artifacts, oldest first.

    artifacts: the artifacts.
    next: what to pass as ``after`` for the next page; ``None`` at the end.
    missing: workers of a fleet that did not answer, so that their artifacts are missing; `object storage` if
        nobody can say what workers that are gone have saved there.
    """

    artifacts: tuple[Artifact, ...]
    next: str | None = None
    missing: tuple[str, ...] = ()


class ArtifactService(Protocol):
    """The part of ``SandboxService`` about artifacts."""

    async def keep_artifacts(self, session_id: str, paths: Sequence[str]) -> KeptArtifacts:
        """Keep the session's files that match, as they are now. Idempotent.

        Only regular files in ``/workspace`` are kept; symbolic links are not followed.
        """
        ...

    async def list_artifacts(
        self,
        *,
        session_id: str | None = None,
        thread: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> ArtifactPage:
        """List the tenant's artifacts, or those of one session or conversation, oldest first."""
        ...

    async def get_artifact(self, artifact_id: str) -> Artifact: ...

    def read_artifact(self, artifact_id: str) -> AsyncIterator[bytes]:
        """Read an artifact's content. ``NotFound`` before the first piece if there is none."""
        ...

    async def delete_artifact(self, artifact_id: str) -> None:
        """Delete an artifact. Idempotent."""
        ...


def media_type_of(path: str) -> str:
    """What a file's name says that it contains."""
    kind, packed = _TYPES.guess_type("/" + path.rpartition("/")[2], strict=True)
    if packed is not None:
        return _PACKED.get(packed, UNKNOWN_TYPE)
    return kind or UNKNOWN_TYPE


def no_artifact_error(artifact_id: str) -> NotFound:
    """The error for an unknown artifact. ``artifact_id`` is unchecked text from the caller."""
    return NotFound(
        f"Artifact {artifact_id[:64]!r} does not exist. It may have been deleted, or was too old."
    )


def surplus(
    oldest: Sequence[Artifact], *, count: int, total_bytes: int, max_count: int, max_bytes: int
) -> int:
    """How many of a tenant's oldest artifacts must go.

    ``oldest``: some of them, oldest first. ``count`` and ``total_bytes``: of all that the tenant has.
    """
    gone = 0
    for artifact in oldest:
        if count <= max_count and total_bytes <= max_bytes:
            break
        count, total_bytes, gone = count - 1, total_bytes - artifact.size, gone + 1
    return gone

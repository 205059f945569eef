"""``AsyncArtifacts`` and ``AsyncSessionArtifacts``: files that stay after their sessions."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Final, Protocol, cast

from sandlot.domain.artifacts.artifact import Artifact, KeptArtifacts
from sandlot.domain.errors import FileProblem, NotFound, Unavailable
from sandlot.domain.service import SandboxService

MAX_READ_BYTES: Final = 16 * 1024 * 1024
# An artifact, or its id.
ArtifactOrId = Artifact | str


class Opened(Protocol):
    """What the artifacts know of their client, which is an ``AsyncClient``."""

    async def opened(self) -> SandboxService:
        """Return the service; the first call starts a local one."""
        ...


class AsyncArtifacts:
    """The files that your sessions have kept: list, read, download and delete them.

    An artifact never changes, and outlives its session.
    """

    def __init__(self, client: Opened) -> None:
        self._client = client

    async def list(
        self, session: str | None = None, *, thread: str | None = None, partial: bool = False
    ) -> AsyncGenerator[Artifact, None]:
        """Iterate over your artifacts, oldest first; pages are fetched as needed.

        ``session``: only those of this session's id, which may have ended. ``thread``: only those of this
        conversation. ``partial``: if workers of a fleet do not answer, go without their artifacts instead of
        raising ``Unavailable`` at the end.
        """
        from sandlot.client.options import thread_key

        key = None if thread is None else thread_key(thread)
        async for artifact in _iterate(await self._client.opened(), session, key, partial=partial):
            yield artifact

    async def get(self, artifact_id: str) -> Artifact:
        """Return what is known of an artifact, by its id."""
        return await (await self._client.opened()).get_artifact(artifact_id)

    async def read(self, artifact: ArtifactOrId, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """Return an artifact's content.

        One of more than ``max_bytes`` raises ``FileProblem`` with the reason ``too_large``; use ``stream`` or
        ``download`` for it.
        """
        return await _read(await self._client.opened(), _id_of(artifact), max_bytes)

    async def stream(self, artifact: ArtifactOrId) -> AsyncGenerator[bytes, None]:
        """Iterate over an artifact's content in pieces."""
        async for piece in (await self._client.opened()).read_artifact(_id_of(artifact)):
            yield piece

    async def download(self, artifact: ArtifactOrId, local: str | os.PathLike[str]) -> Path:
        """Copy an artifact to this machine, and return the path of the copy.

        ``local`` is the path of the copy. If it is an existing folder, the file is put into it.
        """
        return await _download(await self._client.opened(), artifact, local)

    async def delete(self, artifact: ArtifactOrId) -> None:
        """Delete an artifact. Deleting twice is no error."""
        await (await self._client.opened()).delete_artifact(_id_of(artifact))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class AsyncSessionArtifacts:
    """The files of a session that stay after its end: keep, list and download them."""

    def __init__(self, service: SandboxService, session_id: str) -> None:
        self._service = service
        self._session_id = session_id

    async def keep(self, *paths: str) -> KeptArtifacts:
        """Keep files of the session as they are now, such as ``keep("out/*.png", "report.pdf")``.

        Paths are relative to /workspace, and may be patterns. A folder's path means all files below it. Only
        regular files are kept; symbolic links are not followed. The result has what was kept, the paths that
        no file matched, and the files that were not kept, with the reason. A file that was kept before is
        kept again only if it has changed.
        """
        return await self._service.keep_artifacts(self._session_id, paths)

    async def list(self, *, partial: bool = False) -> AsyncGenerator[Artifact, None]:
        """Iterate over the artifacts of this session, oldest first. See ``AsyncArtifacts.list``."""
        async for artifact in _iterate(self._service, self._session_id, None, partial=partial):
            yield artifact

    async def download(self, artifact: Artifact | str, local: str | os.PathLike[str]) -> Path:
        """Copy an artifact to this machine, and return the path of the copy.

        ``artifact``: an artifact, its id, or the path in /workspace of a file that was kept; the latest
        version is meant. ``local`` is the path of the copy. If it is an existing folder, the file is put into
        it.
        """
        if isinstance(artifact, str) and not artifact.startswith("art_"):
            artifact = await self._latest(artifact)
        return await _download(self._service, artifact, local)

    async def _latest(self, path: str) -> Artifact:
        wanted = path.removeprefix("/workspace/")
        found = [one async for one in self.list() if one.path == wanted]
        if not found:
            raise NotFound(f"Session {self._session_id} has kept no file {path!r:.200}.")
        return found[-1]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._session_id}>"


async def _iterate(
    service: SandboxService, session_id: str | None, thread: str | None, *, partial: bool
) -> AsyncGenerator[Artifact, None]:
    after: str | None = None
    missing: set[str] = set()
    while True:
        page = await service.list_artifacts(session_id=session_id, thread=thread, after=after)
        for artifact in page.artifacts:
            yield artifact
        missing.update(page.missing)
        if page.next is None:
            break
        after = page.next
    if missing and not partial:
        raise Unavailable(
            f"Workers that do not answer, so that their artifacts are missing: {', '.join(sorted(missing))}. "
            "Retry, or pass partial=True.",
            details={"missing": sorted(missing)},
        )


async def _read(service: SandboxService, artifact_id: str, max_bytes: int) -> bytes:
    content = bytearray()
    async with contextlib.aclosing(cast(Any, service.read_artifact(artifact_id))) as pieces:
        async for piece in pieces:
            content += piece
            if len(content) > max_bytes:
                raise FileProblem(
                    f"The artifact exceeds {max_bytes} bytes.", reason="too_large", path=artifact_id
                )
    return bytes(content)


async def _download(service: SandboxService, artifact: ArtifactOrId, local: str | os.PathLike[str]) -> Path:
    known = await service.get_artifact(artifact) if isinstance(artifact, str) else artifact
    target = Path(local)
    if await asyncio.to_thread(target.is_dir):
        target /= plain_name(known.path)
    target.parent.mkdir(parents=True, exist_ok=True)
    # To a temporary file first, so that a failed download keeps the existing file.
    descriptor, partial = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            async with contextlib.aclosing(cast(Any, service.read_artifact(known.id))) as pieces:
                async for piece in pieces:
                    await asyncio.to_thread(file.write, piece)
            os.fchmod(file.fileno(), 0o644)
        os.replace(partial, target)
    except BaseException:
        os.unlink(partial)
        raise
    return target


def plain_name(path: str) -> str:
    """The last part of a path that a sandbox named, if it is a plain file name on this machine."""
    name = path.rpartition("/")[2]
    if name in ("", ".", "..") or "\0" in name:
        raise FileProblem(
            f"{name!r:.200} is not a valid file name on this machine.", reason="invalid_path", path=path
        )
    return name


def _id_of(artifact: ArtifactOrId) -> str:
    return artifact if isinstance(artifact, str) else artifact.id

"""What the fake has kept of all sessions, with the same limits and retention as a worker."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sandlot.domain.artifacts.artifact import (
    DEFAULT_MAX_AGE_S,
    DEFAULT_MAX_COUNT,
    DEFAULT_MAX_FILE_BYTES,
    DEFAULT_MAX_SESSION_BYTES,
    DEFAULT_MAX_TENANT_BYTES,
    MAX_FILES,
    Artifact,
    KeptArtifacts,
    NotKept,
    RefusedFile,
    media_type_of,
    no_artifact_error,
    surplus,
)
from sandlot.domain.artifacts.patterns import WORKSPACE, split_pattern
from sandlot.domain.history.positions import worker_tag
from sandlot.domain.ids import artifact_tag, new_artifact_id
from sandlot.domain.session import Session
from sandlot.testing.fake.files import compile_glob
from sandlot.testing.fake.tree import Regular, Tree


@dataclass
class ArtifactLimits:
    """What a fake keeps. A test may change it."""

    max_file_bytes: int = DEFAULT_MAX_FILE_BYTES
    max_session_bytes: int = DEFAULT_MAX_SESSION_BYTES
    max_tenant_bytes: int = DEFAULT_MAX_TENANT_BYTES
    max_count: int = DEFAULT_MAX_COUNT
    max_age_s: float = DEFAULT_MAX_AGE_S


class FakeArtifacts:
    def __init__(self, worker_id: str, clock: Callable[[], float]) -> None:
        self.limits = ArtifactLimits()
        self._tag = worker_tag(worker_id)
        self._clock = clock
        self._artifacts: dict[str, Artifact] = {}  # oldest first
        self._contents: dict[str, bytes] = {}  # by the artifact's id

    def keep(self, session: Session, tree: Tree, patterns: Sequence[str]) -> KeptArtifacts:
        kept: list[Artifact] = []
        unmatched: list[str] = []
        refused: list[RefusedFile] = []
        seen: set[str] = set()
        for pattern in patterns:
            found = list(_matching(tree, pattern))
            if not found:
                unmatched.append(pattern)
            new = [(path, file) for path, file in found if path not in seen]
            room = MAX_FILES - len(seen)
            if len(new) > room:
                refused.append(
                    RefusedFile(pattern, NotKept.TOO_MANY, f"One call keeps at most {MAX_FILES} files.")
                )
            for path, file in new[:room]:
                seen.add(path)
                outcome = self._keep_file(session, path, bytes(file.data))
                if isinstance(outcome, Artifact):
                    kept.append(outcome)
                else:
                    refused.append(outcome)
        return KeptArtifacts(tuple(kept), tuple(unmatched), tuple(refused))

    def _keep_file(self, session: Session, path: str, data: bytes) -> Artifact | RefusedFile:
        limits = self.limits
        if len(data) > min(limits.max_file_bytes, limits.max_tenant_bytes):
            return RefusedFile(path, NotKept.TOO_LARGE, f"It exceeds {limits.max_file_bytes} bytes.")
        of_session = [known for known in self._artifacts.values() if known.session_id == session.id]
        digest = hashlib.sha256(data).hexdigest()
        last = next((known for known in reversed(of_session) if known.path == path), None)
        if last is not None and last.sha256 == digest:
            return last
        used = sum(known.size for known in of_session)
        if len(of_session) >= MAX_FILES or used + len(data) > limits.max_session_bytes:
            return RefusedFile(path, NotKept.SESSION_FULL, "The session has kept as much as it may.")
        artifact = Artifact(
            id=new_artifact_id(self._tag),
            session_id=session.id,
            created_at=self._clock(),
            path=path,
            size=len(data),
            sha256=digest,
            media_type=media_type_of(path),
            tenant=session.tenant,
            thread=session.thread,
        )
        self._artifacts[artifact.id] = artifact
        self._contents[artifact.id] = data
        self._thin_out(session.tenant)
        return artifact

    def of(self, tenant: str, session_id: str | None, thread: str | None) -> list[Artifact]:
        self._delete_old()
        return [
            known
            for known in self._artifacts.values()
            if known.tenant == tenant
            and session_id in (None, known.session_id)
            and thread in (None, known.thread)
        ]

    def get(self, tenant: str, artifact_id: str) -> Artifact:
        self._delete_old()
        found = self._artifacts.get(artifact_id)
        if found is None or found.tenant != tenant:
            raise no_artifact_error(artifact_id)
        return found

    def content(self, artifact: Artifact) -> bytes:
        return self._contents[artifact.id]

    def delete(self, tenant: str, artifact_id: str) -> None:
        if artifact_tag(artifact_id) is None:
            raise no_artifact_error(artifact_id)
        found = self._artifacts.get(artifact_id)
        if found is not None and found.tenant == tenant:
            self._forget(found)

    def _thin_out(self, tenant: str) -> None:
        owned = [known for known in self._artifacts.values() if known.tenant == tenant]
        gone = surplus(
            owned,
            count=len(owned),
            total_bytes=sum(known.size for known in owned),
            max_count=self.limits.max_count,
            max_bytes=self.limits.max_tenant_bytes,
        )
        for artifact in owned[:gone]:
            self._forget(artifact)

    def _delete_old(self) -> None:
        before = self._clock() - self.limits.max_age_s
        for artifact in [known for known in self._artifacts.values() if known.created_at < before]:
            self._forget(artifact)

    def _forget(self, artifact: Artifact) -> None:
        del self._artifacts[artifact.id], self._contents[artifact.id]


def _matching(tree: Tree, pattern: str) -> Iterator[tuple[str, Regular]]:
    """The regular files that match, by their paths. Links are not followed."""
    wanted = compile_glob(pattern)
    # A path without a glob may be a folder's.
    below = compile_glob(pattern + "/**") if split_pattern(pattern)[1] is None else wanted
    files = {path: node for path, node in tree.walk(WORKSPACE) if isinstance(node, Regular)}
    for path in sorted(files):
        if wanted(path) or below(path):
            yield path, files[path]

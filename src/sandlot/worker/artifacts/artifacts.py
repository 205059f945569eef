"""Artifacts of this worker's sessions: keeping, listing, reading and deleting them.

With object storage they have copies there (``copies.py``), and this worker answers for those of others too.

A content is stored first and recorded then; an artifact is forgotten first and its content deleted then. So a
worker that dies in between leaves a content that nobody knows, and the next start deletes it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakValueDictionary

import structlog

from sandlot.domain.artifacts.artifact import (
    MAX_FILES,
    MAX_PATH_BYTES,
    Artifact,
    ArtifactPage,
    KeptArtifacts,
    NotKept,
    RefusedFile,
    media_type_of,
    no_artifact_error,
    surplus,
)
from sandlot.domain.artifacts.finding import find_files
from sandlot.domain.artifacts.listing import artifact_page, check_listing
from sandlot.domain.artifacts.patterns import WORKSPACE, check_patterns
from sandlot.domain.callers.principal import Principal
from sandlot.domain.computer import Files
from sandlot.domain.errors import FileProblem, InvalidRequest, SandlotError, StorageProblem, Unsupported
from sandlot.domain.history.positions import worker_tag
from sandlot.domain.ids import artifact_tag, new_artifact_id
from sandlot.domain.session import Session
from sandlot.worker.artifacts.contents import Contents, TooLargeError, Written
from sandlot.worker.artifacts.copies import Copies
from sandlot.worker.artifacts.options import ArtifactOptions
from sandlot.worker.artifacts.records import ArtifactRecords
from sandlot.worker.failpoints import Step, reached
from sandlot.worker.sessions.files import SessionFiles
from sandlot.worker.sessions.lifecycle import SessionLifecycle
from sandlot.worker.sessions.live_session import LiveSession

if TYPE_CHECKING:  # it needs libraries that other workers do not
    from sandlot.worker.workspaces.objects.storage import ObjectStorage

log = structlog.get_logger("sandlot.artifacts")

# How many old artifacts are deleted in one go.
DELETE_AT_ONCE: Final = 100


class Artifacts:
    def __init__(
        self,
        folder: Path,
        options: ArtifactOptions,
        sessions: SessionLifecycle,
        *,
        worker_id: str,
        min_free_bytes: int | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._options = options
        self._records = ArtifactRecords(folder)
        self._contents = Contents(folder, min_free_bytes)
        self._sessions = sessions
        sessions.keep_declared = self.keep_declared
        self._tag = worker_tag(worker_id)
        self._clock = clock
        # What a tenant has changes by one at a time.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._recording: set[asyncio.Task[Artifact | RefusedFile]] = set()
        self.copies: Copies | None = None

    def copy_to(self, objects: ObjectStorage) -> None:
        """Save artifacts in object storage too. Call it before ``open``."""
        # Only here: it needs libraries that other workers do not.
        from sandlot.worker.workspaces.objects.artifacts.storage import SavedArtifacts

        self.copies = Copies(
            SavedArtifacts(objects),
            self._records,
            self._contents,
            self._tag,
            self._options.max_age_s,
            self.delete,
            self._clock,
        )

    async def open(self) -> None:
        await self._records.open()
        await self._contents.open(await self._records.contents())
        if self.copies is not None:
            await self.copies.start()

    async def close(self) -> None:
        if self.copies is not None:
            await self.copies.close()
        if self._recording:
            await asyncio.wait(set(self._recording))
        await self._records.close()

    # --- keeping ------------------------------------------------------------------------------

    async def keep(self, principal: Principal, session_id: str, paths: Sequence[str]) -> KeptArtifacts:
        patterns = check_patterns(paths)
        session = self._sessions.table.get(principal.tenant, session_id).session
        if not patterns:
            raise InvalidRequest("Name the files to keep, such as 'out/*.png'.")
        return await self._keep(session, SessionFiles(self._sessions, principal, session_id), patterns)

    async def keep_declared(self, live_session: LiveSession) -> None:
        """Keep the files that a session declared. Call it before the session's sandbox goes.

        It takes a bounded time and never raises: no file is a reason for a session to live on.
        """
        session, sandbox = live_session.session, live_session.sandbox
        if not session.artifacts or sandbox is None or live_session.unresponsive_since is not None:
            return
        try:
            async with asyncio.timeout(self._options.declared_within_s):
                done = await self._keep(session, sandbox.files, session.artifacts)
        except (SandlotError, TimeoutError) as error:
            log.warning("declared files were not all kept", session=session.id, error=str(error) or "timeout")
        except Exception:
            # Also what a sandbox that breaks the protocol makes us raise.
            log.exception("declared files were not all kept", session=session.id)
        else:
            refused = [f"{file.path}: {file.message}" for file in done.refused[:10]]
            log.info("kept declared files", session=session.id, kept=len(done.kept), refused=refused)

    async def _keep(self, session: Session, files: Files, patterns: Sequence[str]) -> KeptArtifacts:
        kept: list[Artifact] = []
        unmatched: list[str] = []
        refused: list[RefusedFile] = []
        seen: set[str] = set()
        for pattern in patterns:
            found = await find_files(files, pattern)
            if not found.paths and not found.more:
                unmatched.append(pattern)
            new = [path for path in found.paths if path not in seen]
            room = MAX_FILES - len(seen)
            if found.more or len(new) > room:
                refused.append(_too_many(pattern))
            for path in new[:room]:
                seen.add(path)
                outcome = await self._keep_file(session, files, path)
                if isinstance(outcome, Artifact):
                    kept.append(outcome)
                else:
                    refused.append(outcome)
        return KeptArtifacts(tuple(kept), tuple(unmatched), tuple(refused))

    async def _keep_file(self, session: Session, files: Files, path: str) -> Artifact | RefusedFile:
        if not _is_text(path):
            shown = path.encode("utf-8", "replace").decode()[:MAX_PATH_BYTES]
            return RefusedFile(
                shown, NotKept.NAME, f"Its name is not valid UTF-8, or exceeds {MAX_PATH_BYTES} bytes."
            )
        artifact_id = new_artifact_id(self._tag)
        max_bytes = min(self._options.max_file_bytes, self._options.max_tenant_bytes)
        try:
            # All that reads files here is a generator, which must end with its reader.
            pieces = cast(Any, files.read(f"{WORKSPACE}/{path}"))
            async with aclosing(pieces):
                written = await self._contents.write(artifact_id, pieces, max_bytes)
        except TooLargeError:
            return RefusedFile(path, NotKept.TOO_LARGE, f"It exceeds {max_bytes} bytes.")
        except FileProblem as error:
            return RefusedFile(path, NotKept.UNREADABLE, error.message)
        # Once it is on the disk, it gets its record, whatever becomes of the caller.
        task = asyncio.create_task(self._record(session, artifact_id, path, written))
        self._recording.add(task)
        task.add_done_callback(self._recording.discard)
        return await asyncio.shield(task)

    async def _record(
        self, session: Session, artifact_id: str, path: str, written: Written
    ) -> Artifact | RefusedFile:
        tenant = session.tenant
        async with self._lock_of(tenant):
            known = await self._records.last_of(session.id, path)
            if known is not None and known.sha256 == written.digest:
                await self._contents.discard(written)
                return known
            used, options = await self._records.kept_by_session(session.id), self._options
            if (
                used.count >= options.max_session_count
                or used.bytes + written.size > options.max_session_bytes
            ):
                await self._contents.discard(written)
                return RefusedFile(
                    path,
                    NotKept.SESSION_FULL,
                    f"A session keeps at most {options.max_session_count} files with "
                    f"{options.max_session_bytes} bytes. Delete some of its artifacts.",
                )
            artifact = Artifact(
                id=artifact_id,
                session_id=session.id,
                created_at=self._clock(),
                path=path,
                size=written.size,
                sha256=written.digest,
                media_type=media_type_of(path),
                tenant=tenant,
                thread=session.thread,
            )
            await self._contents.keep(tenant, written)
            reached(Step.ARTIFACT_STORED)
            try:
                await self._records.add(artifact)
            except StorageProblem:
                await self._remove_unused(artifact)
                raise
            reached(Step.ARTIFACT_RECORDED)
            self._wake_copies()
            await self._thin_out(tenant)
        return artifact

    # --- listing, reading, deleting -----------------------------------------------------------

    async def page(
        self, tenant: str, session_id: str | None, thread: str | None, after: str | None, limit: int
    ) -> ArtifactPage:
        begin = check_listing(after, limit)
        return artifact_page(await self._records.page(tenant, session_id, thread, begin, limit + 1), limit)

    async def saved_page(
        self,
        tenant: str,
        session_id: str | None,
        thread: str | None,
        after: str | None,
        limit: int,
        without: Collection[str],
    ) -> ArtifactPage:
        """What is in object storage, except of the workers with the tags ``without``."""
        begin = check_listing(after, limit)
        if self.copies is None:
            raise Unsupported("This worker has no object storage. Set SANDLOT_OBJECTS_URL on all workers.")
        found = await self.copies.page(tenant, session_id, thread, begin, limit + 1, without)
        return artifact_page(found, limit)

    async def get(self, tenant: str, artifact_id: str) -> Artifact:
        found = None
        if artifact_tag(artifact_id) is not None:
            found = await self._records.find(tenant, artifact_id)
            if found is None and self.copies is not None:
                found = await self.copies.find(tenant, artifact_id)
        if found is None:
            raise no_artifact_error(artifact_id)
        return found

    async def read(self, tenant: str, artifact_id: str) -> AsyncIterator[bytes]:
        artifact = await self.get(tenant, artifact_id)
        if self.copies is None or self._contents.file(tenant, artifact.sha256).exists():
            pieces: AsyncGenerator[bytes, None] = self._contents.read(tenant, artifact.sha256)
        else:
            pieces = self.copies.read(artifact)
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece

    async def delete(self, tenant: str, artifact_id: str) -> None:
        if artifact_tag(artifact_id) is None:
            raise no_artifact_error(artifact_id)
        async with self._lock_of(tenant):
            found = await self._records.find(tenant, artifact_id)
            if found is not None:
                await self._remove([found])
                return
        if self.copies is not None:
            await self.copies.delete(tenant, artifact_id)

    async def sweep(self) -> None:
        """Delete artifacts that are too old."""
        before = self._clock() - self._options.max_age_s
        while old := await self._records.older_than(before, DELETE_AT_ONCE):
            for tenant in {artifact.tenant for artifact in old}:
                async with self._lock_of(tenant):
                    await self._remove([artifact for artifact in old if artifact.tenant == tenant])

    async def _thin_out(self, tenant: str) -> None:
        """Delete the oldest artifacts of a tenant that has too many. Its lock is held."""
        while True:
            kept, oldest = (
                await self._records.kept_by_tenant(tenant),
                await self._records.oldest(tenant, DELETE_AT_ONCE),
            )
            gone = surplus(
                oldest,
                count=kept.count,
                total_bytes=kept.bytes,
                max_count=self._options.max_count,
                max_bytes=self._options.max_tenant_bytes,
            )
            if not gone:
                return
            log.info("deleting the oldest artifacts of a tenant that has too many", tenant=tenant, count=gone)
            await self._remove(oldest[:gone])

    async def _remove(self, artifacts: Sequence[Artifact]) -> None:
        """Their tenant's lock is held."""
        await self._records.remove([artifact.id for artifact in artifacts])
        reached(Step.ARTIFACT_FORGOTTEN)
        self._wake_copies()
        for artifact in artifacts:
            await self._remove_unused(artifact)

    async def _remove_unused(self, artifact: Artifact) -> None:
        """Remove the artifact's content unless another artifact has it too."""
        try:
            if not await self._records.has_content(artifact.tenant, artifact.sha256):
                await self._contents.remove(artifact.tenant, artifact.sha256)
        except StorageProblem as error:
            # The next start removes it.
            log.warning("cannot remove an artifact's content", artifact=artifact.id, error=error.message)

    def _wake_copies(self) -> None:
        if self.copies is not None:
            self.copies.wake()

    def _lock_of(self, tenant: str) -> asyncio.Lock:
        lock = self._locks.get(tenant)
        if lock is None:
            lock = self._locks[tenant] = asyncio.Lock()
        return lock


def _is_text(path: str) -> bool:
    try:
        return len(path.encode()) <= MAX_PATH_BYTES
    except UnicodeEncodeError:  # names that are not UTF-8 come with lone surrogates
        return False


def _too_many(pattern: str) -> RefusedFile:
    return RefusedFile(
        pattern,
        NotKept.TOO_MANY,
        f"One call keeps at most {MAX_FILES} files. Keep an archive of them, or name fewer.",
    )

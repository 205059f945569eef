"""Object storage: saves snapshots of a tenant and loads them again, on this worker or another. For artifacts
see ``artifacts/storage.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import structlog

from sandlot.domain.errors import InvalidRequest, SandlotError, StorageProblem
from sandlot.domain.ids import is_session_id
from sandlot.domain.workspaces.exports import Mark, marks_in
from sandlot.domain.workspaces.objects.garbage import longest_save_s
from sandlot.domain.workspaces.objects.limits import MAX_META_BYTES
from sandlot.domain.workspaces.workspace import check_snapshot_id
from sandlot.worker.workspaces.objects.artifacts.leftovers import remove_old_artifacts, remove_old_notes
from sandlot.worker.workspaces.objects.bucket.bucket import Bucket
from sandlot.worker.workspaces.objects.bucket.chunks import ChunkStore
from sandlot.worker.workspaces.objects.bucket.keys import RootKeys
from sandlot.worker.workspaces.objects.bucket.sealing import seal, unseal
from sandlot.worker.workspaces.objects.bucket.transfers import Stopped, Transfers
from sandlot.worker.workspaces.objects.collecting import Collected, Collection
from sandlot.worker.workspaces.objects.loading import Load
from sandlot.worker.workspaces.objects.manifests.heads import find_head, head_path, read_head
from sandlot.worker.workspaces.objects.manifests.records import Head
from sandlot.worker.workspaces.objects.options import ObjectOptions
from sandlot.worker.workspaces.objects.saving import Save, Saved

T = TypeVar("T")
log = structlog.get_logger("sandlot.objects")

_FORMAT: Final = "format"
_FORMAT_CONTENT: Final = b"sandlot object storage 1"
_TENANT: Final = "tenant"
_MARKS: Final = "sessions"


@dataclass(frozen=True, slots=True)
class SavedSnapshot:
    """A snapshot in object storage. ``meta``: what the caller gave with it."""

    tenant: str
    id: str
    created_at: float
    meta: bytes
    bytes_total: int
    bytes_sent: int
    entries: int
    files: int


class ObjectStorage:
    """Call ``open`` first. Every call may be repeated, and may be cancelled."""

    def __init__(self, options: ObjectOptions, clock: Callable[[], float] = time.time) -> None:
        self._options = options
        self._clock = clock
        self._keys = RootKeys(options.key)
        self._jobs = ThreadPoolExecutor(options.jobs, thread_name_prefix="sandlot-objects")
        self._transfers = ThreadPoolExecutor(options.transfers, thread_name_prefix="sandlot-transfers")
        self._bucket: Bucket | None = None
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        """Check that the storage is there, and that it was written with the same key. Idempotent."""
        async with self._opening:
            if self._bucket is None:
                self._bucket = await self.run(lambda _: self._open())

    async def close(self) -> None:
        for threads in (self._jobs, self._transfers):
            await asyncio.to_thread(threads.shutdown, wait=True, cancel_futures=True)

    async def save(
        self, tenant: str, snapshot_id: str, folder: Path, meta: bytes = b"", base: str | None = None
    ) -> Saved:
        """Save the tree in ``folder``, which must not change meanwhile.

        ``base``: a saved snapshot that the tree has developed from in place. Files that are as they were in
        it are not read. A snapshot that is saved already is not saved again.
        """
        check_snapshot_id(snapshot_id)
        if len(meta) > MAX_META_BYTES:
            raise InvalidRequest(f"What is kept with a snapshot must not exceed {MAX_META_BYTES:,} bytes.")

        def work(transfers: Transfers) -> Saved:
            store = self.store(tenant)
            there = find_head(store, snapshot_id)
            if there is not None:
                return Saved(0, there.bytes_total, there.entries, there.files)
            self.announce_tenant(store, tenant)
            save = Save(
                store,
                transfers,
                folder,
                tenant,
                snapshot_id,
                meta,
                self._base(store, base),
                longest_save_s(self._options.grace_s),
            )
            try:
                return save.run()
            except OSError as error:
                raise StorageProblem(f"The workspace cannot be read: {error.strerror}.") from error

        return await self.run(work)

    async def load(
        self,
        tenant: str,
        snapshot_id: str,
        into: Path,
        *,
        max_bytes: int | None = None,
    ) -> SavedSnapshot:
        """Load a snapshot into an empty folder. If that fails, the folder is empty again.

        The folder's owner owns all files. ``max_bytes``: refuse a snapshot with more data.
        """
        check_snapshot_id(snapshot_id)

        def work(transfers: Transfers) -> SavedSnapshot:
            store = self.store(tenant)
            head = read_head(store, snapshot_id)
            Load(store, transfers, head, into, max_bytes).run()
            return _described(head)

        return await self.run(work)

    async def describe(self, tenant: str, snapshot_id: str) -> SavedSnapshot:
        """``NotFound`` if it is not saved."""
        check_snapshot_id(snapshot_id)
        return await self.run(lambda _: _described(read_head(self.store(tenant), snapshot_id)))

    async def list(self, tenant: str | None = None) -> Sequence[tuple[str, str]]:
        """The saved snapshots of a tenant or of all, each with its tenant."""

        def work(transfers: Transfers) -> Sequence[tuple[str, str]]:
            found = set()
            for name in [tenant] if tenant is not None else self.tenants():
                transfers.check()
                folder = f"{self._keys.of(name).folder}/snapshots"
                for listed in self.bucket.list(folder):
                    found.add((name, listed.path.rpartition("/")[2]))
            return sorted(found)

        return await self.run(work)

    async def delete(self, tenant: str, snapshot_id: str) -> None:
        """Forget a snapshot. ``collect`` frees what only it needed, after the grace."""
        check_snapshot_id(snapshot_id)

        def work(_: Transfers) -> None:
            self.bucket.delete([head_path(self.store(tenant), snapshot_id)])

        await self.run(work)

    # --- marks --------------------------------------------------------------------------------

    async def mark(self, tenant: str, session_id: str, mark: Mark) -> None:
        """Note that a session has a saved snapshot. Every worker can find it then."""

        def work(_: Transfers) -> None:
            self.store(tenant).write_object(f"{_marks_of(session_id)}/{mark.name}", b"")

        await self.run(work)

    async def marks(self, tenant: str, session_id: str) -> Sequence[Mark]:
        """The marks of a session, newest first. A marked snapshot may be deleted by now."""

        def work(_: Transfers) -> Sequence[Mark]:
            folder = f"{self._keys.of(tenant).folder}/{_marks_of(session_id)}"
            return marks_in(listed.path.rpartition("/")[2] for listed in self.bucket.list(folder))

        return await self.run(work)

    async def unmark(self, tenant: str, session_id: str, mark: Mark) -> None:
        def work(_: Transfers) -> None:
            folder = f"{self._keys.of(tenant).folder}/{_marks_of(session_id)}"
            self.bucket.delete([f"{folder}/{mark.name}"])

        await self.run(work)

    # --- freeing ------------------------------------------------------------------------------

    async def collect(self, tenant: str | None = None, *, artifacts_before: float | None = None) -> Collected:
        """Free what no snapshot and no artifact of a tenant, or of all, needs any more.

        ``artifacts_before``: delete artifacts that were kept before this time. Their worker may be gone.
        """

        def work(transfers: Transfers) -> Collected:
            collected = Collected()
            remove_old_notes(self.bucket)
            for name in [tenant] if tenant is not None else self.tenants():
                collection = Collection(self.store(name), transfers, self._options.grace_s, self._clock)
                try:
                    remove_old_artifacts(self.store(name), transfers, artifacts_before, self.grace_s)
                    collected += collection.run() or Collected()
                    self._remove_old_marks(self._keys.of(name).folder)
                except SandlotError as error:
                    # Nothing is deleted while a snapshot cannot be read: it may need everything.
                    log.warning("cannot free object storage", tenant=name, error=error.message)
                    if tenant is not None:
                        raise
            return collected

        return await self.run(work)

    # --- for artifacts, which are saved here too -----------------------------------------------

    @property
    def grace_s(self) -> float:
        return self._options.grace_s

    def fetch(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run it in one of the threads that fetch."""
        return asyncio.get_running_loop().run_in_executor(self._transfers, work)

    # --- in threads ---------------------------------------------------------------------------

    @property
    def bucket(self) -> Bucket:
        assert self._bucket is not None, "call open first"
        return self._bucket

    def store(self, tenant: str) -> ChunkStore:
        return ChunkStore(self.bucket, self._keys.of(tenant))

    def _open(self) -> Bucket:
        bucket = Bucket(self._options)
        found = bucket.get(_FORMAT)
        if found is None:
            bucket.put(_FORMAT, self.seal_root(_FORMAT, _FORMAT_CONTENT))
        elif self.unseal_root(_FORMAT, found) != _FORMAT_CONTENT:
            raise StorageProblem(
                f"The object storage {self._options.location} was written by another version of Sandlot, or "
                "with another key. Check SANDLOT_OBJECTS_URL and SANDLOT_OBJECTS_KEY_FILE."
            )
        return bucket

    def announce_tenant(self, store: ChunkStore, tenant: str) -> None:
        path = f"{store.keys.folder}/{_TENANT}"
        if self.bucket.find(path) is None:
            self.bucket.put(path, self.seal_root(path, tenant.encode()))

    def tenants(self) -> Sequence[str]:
        found = []
        for folder in self.bucket.folders("tenants"):
            path = f"tenants/{folder}/{_TENANT}"
            sealed = self.bucket.get(path)
            name = None if sealed is None else self.unseal_root(path, sealed)
            if name is None:
                log.warning("a folder in the object storage has no readable tenant", folder=folder)
            else:
                found.append(name.decode())
        return found

    def _remove_old_marks(self, folder: str) -> None:
        """Remove marks of snapshots that are deleted. A mark is written after its snapshot."""
        marked = {
            listed.path: mark.snapshot
            for listed in self.bucket.list(f"{folder}/{_MARKS}")
            for mark in marks_in([listed.path.rpartition("/")[2]])
        }
        saved = {listed.path.rpartition("/")[2] for listed in self.bucket.list(f"{folder}/snapshots")}
        self.bucket.delete([path for path, snapshot in marked.items() if snapshot not in saved])

    def seal_root(self, path: str, content: bytes) -> bytes:
        return seal(content, self._keys.seal, path, encrypt=self._keys.encrypts)

    def unseal_root(self, path: str, sealed: bytes) -> bytes | None:
        try:
            return unseal(sealed, self._keys.seal, path, encrypted=self._keys.encrypts)
        except StorageProblem:
            return None

    def _base(self, store: ChunkStore, base: str | None) -> Head | None:
        if base is None:
            return None
        try:
            return find_head(store, base)
        except SandlotError as error:
            log.warning("cannot read the previous manifest", snapshot=base, error=error.message)
            return None

    async def run(self, work: Callable[[Transfers], T]) -> T:
        """Run it in a thread. A caller that is cancelled waits until it has stopped: it uses a folder."""
        transfers = Transfers(self._transfers, self._options.transfers)
        running = asyncio.get_running_loop().run_in_executor(self._jobs, lambda: work(transfers))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            transfers.stopped.set()
            while not running.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([running])
            with contextlib.suppress(Stopped, SandlotError):
                running.result()
            raise


def _marks_of(session_id: str) -> str:
    """The folder of a session's marks, in its tenant's."""
    assert is_session_id(session_id)
    return f"{_MARKS}/{session_id}"


def _described(head: Head) -> SavedSnapshot:
    return SavedSnapshot(
        head.tenant,
        head.snapshot,
        head.created_at,
        head.meta,
        head.bytes_total,
        head.bytes_sent,
        head.entries,
        head.files,
    )

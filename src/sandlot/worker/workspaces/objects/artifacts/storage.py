"""Saves artifacts in object storage, and finds, reads and deletes what any worker has saved there."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from sandlot.domain.artifacts.artifact import Artifact
from sandlot.domain.artifacts.saved import SavedMark
from sandlot.domain.errors import StorageProblem
from sandlot.domain.ids import artifact_tag
from sandlot.domain.workspaces.objects.entry_names import damaged
from sandlot.domain.workspaces.objects.garbage import longest_save_s
from sandlot.worker.workspaces.objects.artifacts.index import SavedIndex, list_marks
from sandlot.worker.workspaces.objects.artifacts.records import (
    DELETED,
    SavedArtifact,
    find_saved,
    mark_name,
    record_name,
    thread_hash,
)
from sandlot.worker.workspaces.objects.artifacts.saving import ArtifactSave
from sandlot.worker.workspaces.objects.bucket.chunks import ChunkStore
from sandlot.worker.workspaces.objects.bucket.transfers import Transfers
from sandlot.worker.workspaces.objects.storage import ObjectStorage

T = TypeVar("T")

# How far a reader's chunks are fetched ahead of it: a megabyte each.
CHUNKS_AHEAD: Final = 4


class SavedArtifacts:
    """Every call opens the storage if need be, may be repeated, and may be cancelled."""

    def __init__(self, objects: ObjectStorage) -> None:
        self.objects = objects
        self._index = SavedIndex()

    async def save(self, artifact: Artifact, file: Path) -> int:
        """Save an artifact with the content in ``file``. Returns how many bytes were sent."""

        def work(transfers: Transfers) -> int:
            store = self.objects.store(artifact.tenant)
            self.objects.announce_tenant(store, artifact.tenant)
            limit_s = longest_save_s(self.objects.grace_s)
            try:
                return ArtifactSave(store, transfers, artifact, file, limit_s).run()
            except OSError as error:
                raise StorageProblem(f"The artifact's content cannot be read: {error.strerror}.") from error

        return await self._run(work)

    async def find(self, tenant: str, artifact_id: str) -> Artifact | None:
        saved = await self._find(tenant, artifact_id)
        return None if saved is None else saved.artifact

    async def read(self, tenant: str, artifact_id: str) -> AsyncGenerator[bytes, None]:
        """The content. Its last piece comes only if all of it is what was kept."""
        saved = await self._find(tenant, artifact_id)
        if saved is None:
            raise damaged(f"the record of {artifact_id} is missing")
        store, digest = self.objects.store(tenant), hashlib.sha256()
        left = deque(saved.chunks)
        ahead: deque[asyncio.Future[bytes]] = deque()
        last = b""
        try:
            while left or ahead:
                while left and len(ahead) < CHUNKS_AHEAD:
                    ahead.append(self.objects.fetch(partial(store.get, left.popleft())))
                piece = await ahead.popleft()
                digest.update(piece)
                if last:
                    yield last
                last = piece
        finally:
            for fetching in ahead:
                fetching.cancel()
            await asyncio.gather(*ahead, return_exceptions=True)
        if digest.hexdigest() != saved.artifact.sha256:
            raise damaged(f"the content of {artifact_id} is another one")
        if last:
            yield last

    async def delete(self, artifact: Artifact) -> None:
        """Forget an artifact. ``collect`` frees what only it needed, after the grace."""
        await self._run(lambda _: self._delete(self.objects.store(artifact.tenant), artifact))

    async def delete_for(self, tenant: str, artifact_id: str) -> None:
        """Delete another worker's artifact. That worker hears of it if it is ever back."""

        def work(_: Transfers) -> None:
            store = self.objects.store(tenant)
            saved = find_saved(store, artifact_id, tenant)
            if saved is not None:
                path = f"{DELETED}/{artifact_tag(artifact_id)}/{artifact_id}"
                store.bucket.put(path, self.objects.seal_root(path, tenant.encode()))
                self._delete(store, saved.artifact)

        await self._run(work)

    async def deleted_elsewhere(self, tag: str) -> Sequence[tuple[str, str]]:
        """Tenant and id of what was deleted while the worker with this tag was away."""

        def work(_: Transfers) -> Sequence[tuple[str, str]]:
            found = []
            for listed in self.objects.bucket.list(f"{DELETED}/{tag}"):
                artifact_id = listed.path.rpartition("/")[2]
                if artifact_tag(artifact_id) != tag:
                    continue  # not ours
                sealed = self.objects.bucket.get(listed.path)
                tenant = None if sealed is None else self.objects.unseal_root(listed.path, sealed)
                if tenant is not None:
                    found.append((tenant.decode(), artifact_id))
            return found

        return await self._run(work)

    async def heard_of_deletion(self, artifact_id: str) -> None:
        path = f"{DELETED}/{artifact_tag(artifact_id)}/{artifact_id}"
        await self._run(lambda _: self.objects.bucket.delete([path]))

    async def page(
        self,
        tenant: str,
        session_id: str | None,
        thread: str | None,
        after: str,
        limit: int,
        without: Collection[str],
    ) -> Sequence[Artifact]:
        """The first ``limit`` after a place, oldest first. ``without``: tags of workers to leave out."""

        def work(transfers: Transfers) -> Sequence[Artifact]:
            store = self.objects.store(tenant)
            in_thread = None if thread is None else thread_hash(store.keys, thread)

            def wanted(mark: SavedMark) -> bool:
                return (
                    mark.place > after
                    and session_id in (None, mark.session)
                    and in_thread in (None, mark.thread)
                )

            return self._index.page(store, transfers, tenant, wanted, limit, without)

        return await self._run(work)

    async def tenants(self) -> Sequence[str]:
        return await self._run(lambda _: self.objects.tenants())

    async def marks(self, tenant: str, tag: str) -> Sequence[SavedMark]:
        """Of what the worker with this tag has saved of a tenant, oldest first."""
        return await self._run(lambda _: list_marks(self.objects.store(tenant), tag))

    async def _run(self, work: Callable[[Transfers], T]) -> T:
        await self.objects.open()
        return await self.objects.run(work)

    async def _find(self, tenant: str, artifact_id: str) -> SavedArtifact | None:
        return await self._run(lambda _: find_saved(self.objects.store(tenant), artifact_id, tenant))

    def _delete(self, store: ChunkStore, artifact: Artifact) -> None:
        folder, tag = store.keys.folder, artifact_tag(artifact.id)
        assert tag is not None
        # The mark last: without it, nobody would look for what a death leaves of the rest.
        store.bucket.delete([f"{folder}/{record_name(artifact.id)}"])
        store.bucket.delete([f"{folder}/{mark_name(store.keys, artifact)}"])
        self._index.forget(artifact.tenant, artifact.id, tag)

"""Snapshots as archives: what leaves a store comes back the same, and a broken archive leaves nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sandlot.domain.errors import InvalidRequest, NotFound, TooLarge
from sandlot.domain.ids import new_snapshot_id
from sandlot.providers.workspaces import ArchiveStore
from sandlot.testing.provider_suite.harness import ok
from sandlot.testing.workspace_suite.harness import (
    MAKE_FILES,
    TAG,
    WorkspaceCases,
    WorkspaceHarness,
    described,
)


class TornError(Exception):
    pass


class ArchiveCases(WorkspaceCases):
    async def test_a_snapshot_leaves_and_comes_back(self, rig: WorkspaceHarness) -> None:
        """Modes, links, times, holes and names."""
        store = archives_of(rig)
        sandbox = await rig.create()
        await ok(sandbox, MAKE_FILES)
        before = await described(sandbox)
        archive = await read(store, await rig.take(sandbox))
        snapshot_id = rig.new_snapshot()
        await store.new_from_archive(snapshot_id, pieces_of(archive))
        await store.new_from_archive(snapshot_id, pieces_of(archive))  # done already
        assert await described(await rig.create_with(await rig.copy_of(snapshot_id))) == before
        difference = await store.compare(snapshot_id, await rig.copy_of(snapshot_id))
        assert not difference.added

    async def test_an_archive_of_no_snapshot(self, rig: WorkspaceHarness) -> None:
        store = archives_of(rig)
        with pytest.raises(NotFound):
            await read(store, new_snapshot_id(TAG))

    async def test_a_broken_archive_leaves_nothing(self, rig: WorkspaceHarness) -> None:
        store = archives_of(rig)
        sandbox = await rig.create()
        await ok(sandbox, "head -c 3000000 /dev/urandom >a; ln a b")
        archive = await read(store, await rig.take(sandbox))
        flipped = bytearray(archive)
        flipped[len(archive) // 2] ^= 1
        before = (await store.list()).snapshots
        for broken in (archive[:-1], archive[: len(archive) // 2], bytes(flipped), b"", b"no archive"):
            with pytest.raises(InvalidRequest):
                await store.new_from_archive(new_snapshot_id(TAG), pieces_of(broken))
        with pytest.raises(TooLarge):
            await store.new_from_archive(new_snapshot_id(TAG), pieces_of(archive), max_bytes=1_000_000)
        with pytest.raises(TornError):
            await store.new_from_archive(new_snapshot_id(TAG), _torn(archive))
        assert (await store.list()).snapshots == before


def archives_of(rig: WorkspaceHarness) -> ArchiveStore:
    if not isinstance(rig.store, ArchiveStore):
        pytest.skip("the store has no archives of snapshots")
    return rig.store


async def read(store: ArchiveStore, snapshot_id: str) -> bytes:
    return b"".join([piece async for piece in store.read_archive(snapshot_id)])


async def pieces_of(archive: bytes, size: int = 100_000) -> AsyncIterator[bytes]:
    for place in range(0, len(archive), size):
        yield archive[place : place + size]


async def _torn(archive: bytes) -> AsyncIterator[bytes]:
    """As from a sender whose connection breaks."""
    yield archive[: len(archive) // 2]
    raise TornError

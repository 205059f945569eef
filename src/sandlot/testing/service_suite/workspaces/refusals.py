"""Snapshots of others, names and ids that no snapshot has, and services that have no snapshots."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import pytest

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import InvalidRequest, NotFound, SessionEnded, Unsupported
from sandlot.domain.service import SandboxService
from sandlot.domain.workspaces.snapshots import (
    BASE_LABEL,
    MAX_LABELS,
    MAX_NAME_CHARS,
    RestoreSnapshot,
    TakeSnapshot,
)
from sandlot.testing.eventually import eventually
from sandlot.testing.service_suite.harness import (
    NEEDS_SNAPSHOTS,
    Cases,
    ServiceHarness,
    check_three_fields,
    unique,
)
from sandlot.testing.service_suite.workspaces.snapshots import unknown_snapshot


class ForeignSnapshotCases(Cases):
    @NEEDS_SNAPSHOTS
    async def test_no_other_tenant_sees_a_snapshot(
        self, fresh: AsyncSession, client: AsyncClient, stranger: AsyncClient
    ) -> None:
        """The answer is that for a snapshot that never was, so that ids cannot be probed."""
        snapshot = await fresh.workspace.snapshot()
        own = await fresh.workspace.snapshot()
        async with await stranger.create() as theirs:
            their_own = await theirs.workspace.snapshot()
            calls: tuple[Callable[[str], Awaitable[object]], ...] = (
                lambda id: theirs.workspace.restore(id),
                lambda id: theirs.workspace.diff(id),
                lambda id: theirs.workspace.diff(their_own, to=id),
                lambda id: stranger.create(snapshot=id),
            )
            unknown = unknown_snapshot(like=snapshot.id)
            for call in calls:
                messages = []
                for snapshot_id in (snapshot.id, unknown):
                    with pytest.raises(NotFound) as caught:
                        await call(snapshot_id)
                    assert type(caught.value) is NotFound
                    messages.append(caught.value.message.replace(snapshot_id, "ID"))
                assert messages[0] == messages[1]
            await stranger.delete_snapshot(snapshot.id)
            seen = {found.id async for found in stranger.snapshots()}
            assert their_own.id in seen
            assert not seen & {snapshot.id, own.id}
            assert [found.id async for found in stranger.snapshots(fresh.id)] == []
            assert their_own.id not in {found.id async for found in client.snapshots()}
        assert [found.id async for found in fresh.workspace.snapshots()] == [snapshot.id, own.id]
        await client.delete_snapshot(own)

    @NEEDS_SNAPSHOTS
    async def test_no_other_tenant_takes_or_restores_one(
        self, service: SandboxService, fresh: AsyncSession, stranger: AsyncClient
    ) -> None:
        snapshot = await fresh.workspace.snapshot()
        for call in (
            stranger.service.take_snapshot(fresh.id, TakeSnapshot()),
            stranger.service.take_snapshot(fresh.id, TakeSnapshot(step="one")),
            stranger.service.restore_snapshot(fresh.id, RestoreSnapshot(snapshot.id)),
            stranger.service.restore_snapshot(fresh.id, RestoreSnapshot(None, "one")),
        ):
            with pytest.raises(NotFound) as caught:
                await call
            assert type(caught.value) is NotFound
        assert (await service.get_session(fresh.id)).generation == 1
        assert [found.id async for found in fresh.workspace.snapshots()] == [snapshot.id]


class SnapshotStrictnessCases(Cases):
    @NEEDS_SNAPSHOTS
    @pytest.mark.parametrize(
        ("name", "labels"),
        [
            ("x" * (MAX_NAME_CHARS + 1), {}),
            ("two\nlines", {}),
            ("a\x1b[31mcolor", {}),
            ("", {f"label{number}": "" for number in range(MAX_LABELS + 1)}),
            ("", {"long": "x" * 5000}),
            ("", {BASE_LABEL: "true"}),
        ],
    )
    async def test_refused_names_and_labels(
        self, session: AsyncSession, name: str, labels: Mapping[str, str]
    ) -> None:
        with pytest.raises(InvalidRequest) as caught:
            await session.workspace.snapshot(name, labels=labels)
        check_three_fields(caught.value)
        assert [found.name async for found in session.workspace.snapshots() if found.name == name] == []

    @NEEDS_SNAPSHOTS
    async def test_names_of_many_kinds(self, fresh: AsyncSession) -> None:
        names = ["", "x" * MAX_NAME_CHARS, "Größe 2 ✓", '"quoted" & <odd>', "same", "same"]
        labels = {"Größe": "✓", "": "empty"}
        for name in names:
            await fresh.workspace.snapshot(name, labels=labels)
        found = [(one.name, one.labels) async for one in fresh.workspace.snapshots()]
        assert found == [(name, labels) for name in names]

    @NEEDS_SNAPSHOTS
    @pytest.mark.parametrize(
        "snapshot_id", ["x", "snp_", "snp_" + "g" * 32, "snp_" + "0" * 33, "../..", "x" * 1000, "a b", "%2e"]
    )
    async def test_malformed_snapshot_id(
        self, session: AsyncSession, client: AsyncClient, snapshot_id: str
    ) -> None:
        calls: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: session.workspace.restore(snapshot_id),
            lambda: session.workspace.diff(snapshot_id),
            lambda: client.create(snapshot=snapshot_id),
        )
        for call in calls:
            with pytest.raises((InvalidRequest, NotFound)) as caught:
                await call()
            check_three_fields(caught.value)

    @NEEDS_SNAPSHOTS
    async def test_unknown_snapshot(self, fresh: AsyncSession, client: AsyncClient) -> None:
        known = await fresh.workspace.snapshot()
        for unknown in (unknown_snapshot(), unknown_snapshot(like=known.id)):
            for call in (
                fresh.workspace.restore(unknown),
                fresh.workspace.diff(unknown),
                fresh.workspace.diff(known, to=unknown),
                client.create(snapshot=unknown),
            ):
                with pytest.raises(NotFound):
                    await call
            await client.delete_snapshot(unknown)
        assert (await fresh.refresh()).generation == 1

    @NEEDS_SNAPSHOTS
    async def test_ended_session_takes_none(self, client: AsyncClient, fresh: AsyncSession) -> None:
        snapshot = await fresh.workspace.snapshot()
        ended = await client.create()
        await ended.delete()
        for call in (
            ended.workspace.snapshot(),
            ended.workspace.restore(snapshot),
            ended.workspace.status(),
        ):
            with pytest.raises(SessionEnded):
                await call

    @NEEDS_SNAPSHOTS
    async def test_keys_of_creates_know_the_snapshot(self, fresh: AsyncSession, client: AsyncClient) -> None:
        key = unique("key")
        snapshot = await fresh.workspace.snapshot()
        async with await client.create(snapshot=snapshot, idempotency_key=key) as copy:
            again = await client.create(snapshot=snapshot, idempotency_key=key)
            assert again.id == copy.id


class NoSnapshotCases(Cases):
    """What a service without snapshots says: which call is refused, why, and what to do about it."""

    async def test_unsupported_with_a_note(
        self, service_harness: ServiceHarness, fresh: AsyncSession, client: AsyncClient
    ) -> None:
        if service_harness.abilities.snapshots:
            pytest.skip("this service takes snapshots")
        status = await fresh.workspace.status()
        assert status.note
        for call in (fresh.workspace.snapshot(), fresh.fork()):
            with pytest.raises(Unsupported) as caught:
                await call
            check_three_fields(caught.value)
            assert status.note in caught.value.message
        for unknown in (
            fresh.workspace.restore(unknown_snapshot()),
            fresh.workspace.diff(unknown_snapshot()),
            client.create(snapshot=unknown_snapshot()),
        ):
            with pytest.raises((Unsupported, NotFound)):  # a fleet looks for the snapshot's worker first
                await unknown
        assert [found.id async for found in fresh.workspace.snapshots()] == []
        await client.delete_snapshot(unknown_snapshot())

        async def unharmed() -> bool:
            return (await fresh.run("true")).ok

        await eventually(unharmed)
        assert fresh.generation == 1

"""Steps: a caller that goes on keeps its sandbox, and one that goes back gets the files as they were."""

from __future__ import annotations

import pytest

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import Conflict, InvalidRequest, NotFound
from sandlot.domain.service import SandboxService
from sandlot.domain.workspaces.snapshots import (
    BASE_LABEL,
    MAX_STEP_CHARS,
    Restored,
    RestoreSnapshot,
    TakeSnapshot,
)
from sandlot.testing.service_suite.harness import NEEDS_SNAPSHOTS, Cases, ok
from sandlot.testing.service_suite.workspaces.snapshots import unknown_snapshot


class StepCases(Cases):
    @NEEDS_SNAPSHOTS
    async def test_going_on_restores_nothing(self, service: SandboxService, fresh: AsyncSession) -> None:
        began = await begin(service, fresh, None, "one")
        assert not began.replaced
        assert (began.lost, began.session.generation) == ((), 1)
        await ok(fresh, "echo 1 >file")
        first = await end(service, fresh, "one")
        assert not (await begin(service, fresh, first, "two")).replaced
        await ok(fresh, "echo 2 >file")
        second = await end(service, fresh, "two")
        assert second != first
        snapshots = [found async for found in fresh.workspace.snapshots()]
        assert [found.id for found in snapshots] == [began.snapshot, first, second]
        assert [found.parent for found in snapshots] == [None, began.snapshot, first]
        assert [BASE_LABEL in found.labels for found in snapshots] == [True, False, False]

    @NEEDS_SNAPSHOTS
    async def test_no_change_is_no_snapshot(self, service: SandboxService, fresh: AsyncSession) -> None:
        await begin(service, fresh, None, "one")
        await ok(fresh, "echo 1 >file")
        first = await end(service, fresh, "one")
        assert await end(service, fresh, "one") == first
        await begin(service, fresh, first, "two")
        await ok(fresh, "cat file; echo x >/tmp/elsewhere")
        assert await end(service, fresh, "two") == first
        await ok(fresh, "echo 1 >>file")
        assert await end(service, fresh, "two") != first

    @NEEDS_SNAPSHOTS
    async def test_going_back_restores(self, service: SandboxService, fresh: AsyncSession) -> None:
        await begin(service, fresh, None, "one")
        await ok(fresh, "echo 1 >file")
        first = await end(service, fresh, "one")
        await begin(service, fresh, first, "two")
        await ok(fresh, "echo 2 >file")
        second = await end(service, fresh, "two")
        back = await begin(service, fresh, first, "three")
        assert (back.replaced, back.snapshot, back.session.generation) == (True, first, 2)
        assert await fresh.files.read_text("file") == "1\n"
        await ok(fresh, "echo 3 >file")
        third = await end(service, fresh, "three")
        assert (await begin(service, fresh, second, "four")).replaced
        assert await fresh.files.read_text("file") == "2\n"
        assert (await begin(service, fresh, third, "five")).replaced
        assert await fresh.files.read_text("file") == "3\n"
        assert (await begin(service, fresh, None, "six")).replaced
        assert not await fresh.files.exists("file")

    @NEEDS_SNAPSHOTS
    async def test_what_a_broken_step_did_is_undone(
        self, service: SandboxService, fresh: AsyncSession
    ) -> None:
        await begin(service, fresh, None, "one")
        await ok(fresh, "echo 1 >file")
        first = await end(service, fresh, "one")
        await begin(service, fresh, first, "broken")
        await ok(fresh, "echo half >file")
        assert not (await begin(service, fresh, first, "broken")).replaced, "the same step goes on"
        assert await fresh.files.read_text("file") == "half\n"
        assert (await begin(service, fresh, first, "another")).replaced
        assert await fresh.files.read_text("file") == "1\n"

    @NEEDS_SNAPSHOTS
    async def test_a_step_has_several_parts(self, service: SandboxService, fresh: AsyncSession) -> None:
        base = (await begin(service, fresh, None, "one")).snapshot
        await ok(fresh, "echo first >file")
        await end(service, fresh, "one")
        again = await begin(service, fresh, base, "one")
        assert (again.replaced, again.snapshot) == (False, base)
        await ok(fresh, "echo second >>file")
        whole = await end(service, fresh, "one")
        assert not (await begin(service, fresh, whole, "two")).replaced
        assert await fresh.files.read_text("file") == "first\nsecond\n"

    @NEEDS_SNAPSHOTS
    async def test_an_overtaken_step_cannot_end(self, service: SandboxService, fresh: AsyncSession) -> None:
        base = (await begin(service, fresh, None, "one")).snapshot
        await ok(fresh, "echo 1 >file")
        first = await end(service, fresh, "one")
        await begin(service, fresh, base, "two")
        with pytest.raises(Conflict, match="step"):
            await end(service, fresh, "one")
        await begin(service, fresh, first, "three")
        await fresh.workspace.restore(base)
        with pytest.raises(Conflict):
            await end(service, fresh, "three")
        with pytest.raises(Conflict):
            await end(service, fresh, "never begun")

    @NEEDS_SNAPSHOTS
    async def test_own_snapshots_move_no_line(self, service: SandboxService, fresh: AsyncSession) -> None:
        base = (await begin(service, fresh, None, "one")).snapshot
        await ok(fresh, "echo 1 >file")
        own = await fresh.workspace.snapshot("my own")
        ended = await end(service, fresh, "one")
        assert ended not in (own.id, base)
        assert not (await begin(service, fresh, ended, "two")).replaced

    @NEEDS_SNAPSHOTS
    async def test_steps_of_a_session_from_a_snapshot(
        self, service: SandboxService, client: AsyncClient, fresh: AsyncSession
    ) -> None:
        await begin(service, fresh, None, "one")
        await ok(fresh, "echo 1 >file")
        first = await end(service, fresh, "one")
        async with await client.create(snapshot=first) as branch:
            assert not (await begin(service, branch, first, "two")).replaced, "it has these files already"
            await ok(branch, "echo branch >file")
            await end(service, branch, "two")
        assert await fresh.files.read_text("file") == "1\n"

    @NEEDS_SNAPSHOTS
    async def test_refused_steps(self, service: SandboxService, fresh: AsyncSession) -> None:
        for step in ("x" * (MAX_STEP_CHARS + 1), "two\nlines"):
            with pytest.raises(InvalidRequest):
                await begin(service, fresh, None, step)
            with pytest.raises(InvalidRequest):
                await end(service, fresh, step)
        with pytest.raises(InvalidRequest):
            await begin(service, fresh, None, "")
        with pytest.raises(NotFound):
            await begin(service, fresh, unknown_snapshot(), "one")


async def begin(service: SandboxService, session: AsyncSession, snapshot: str | None, step: str) -> Restored:
    return await service.restore_snapshot(session.id, RestoreSnapshot(snapshot, step))


async def end(service: SandboxService, session: AsyncSession, step: str) -> str:
    return (await service.take_snapshot(session.id, TakeSnapshot(step=step))).id

"""Which calls about workspaces go straight to a session's worker, and what follows a new sandbox."""

from __future__ import annotations

from sandlot.domain.session import SessionState
from sandlot.domain.workspaces.snapshots import RestoreSnapshot, TakeSnapshot
from tests.fleet.straight_rig import Rig


async def test_a_session_is_asked_straight_and_a_snapshot_is_not(rig: Rig) -> None:
    session = await rig.session()
    taken = await rig.service.take_snapshot(session, TakeSnapshot())
    await rig.service.get_workspace(session)
    assert rig.worker.since() == ["take_snapshot", "get_workspace"]
    assert rig.coordinator.since() == []
    await rig.service.list_snapshots(session_id=session)
    await rig.service.compare_snapshot(taken.id)
    await rig.service.delete_snapshot(taken.id)
    assert rig.coordinator.since() == ["list_snapshots", "compare_snapshot", "delete_snapshot"]
    assert rig.worker.since() == []


async def test_after_a_restore_the_way_is_still_straight(rig: Rig) -> None:
    """The answer brings access to the new sandbox: no token is refused."""
    session = await rig.session()
    taken = await rig.service.take_snapshot(session, TakeSnapshot())
    rig.worker.since()
    restored = await rig.service.restore_snapshot(session, RestoreSnapshot(taken.id))
    assert restored.session.generation == 2
    assert rig.coordinator.since() == ["restore_snapshot"]
    assert (await rig.run(session)).generation == 2
    assert rig.worker.since() == ["execute"]
    assert (rig.coordinator.since(), rig.gate.refused) == ([], 0)


async def test_a_session_that_woke_is_asked_straight_again(rig: Rig) -> None:
    session = await rig.session()
    assert (await rig.service.hibernate_session(session)).state is SessionState.HIBERNATED
    assert rig.coordinator.since() == ["hibernate_session"]
    assert [(await rig.run(session)).generation for _ in range(3)] == [2, 2, 2]
    assert rig.worker.since()[-1] == "execute"
    assert rig.gate.refused <= 1, "only the token for the sandbox before is refused, once"

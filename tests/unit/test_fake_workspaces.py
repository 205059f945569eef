"""The fake's own features about workspaces: its quota, its clock, and how it stores snapshots."""

from __future__ import annotations

import pytest

from sandlot.domain.errors import FileProblem, NotFound, SessionEnded, Unsupported
from sandlot.domain.execution import ExecRequest, ExecResult, Verdict
from sandlot.domain.session import CreateSession, OnIdle, Session, SessionState
from sandlot.domain.workspaces.snapshots import RestoreSnapshot, TakeSnapshot
from sandlot.domain.workspaces.workspace import StoreKind
from sandlot.testing import FakeService, FakeStore


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def created(service: FakeService, **options: object) -> Session:
    return (await service.create_session(CreateSession(**options))).session  # type: ignore[arg-type]


async def run(service: FakeService, session: Session, command: str) -> ExecResult:
    return await service.execute(session.id, ExecRequest(command=command, timeout_s=10))


async def taken(service: FakeService, session: Session, name: str = "") -> str:
    return (await service.take_snapshot(session.id, TakeSnapshot(name))).id


async def kept(service: FakeService, session: Session) -> list[str]:
    return [found.id for found in (await service.list_snapshots(session_id=session.id)).snapshots]


# --- the quota ------------------------------------------------------------------------------------


async def test_a_full_workspace_refuses_and_the_rest_goes_on() -> None:
    service = FakeService(store=FakeStore(quota_bytes=1000))
    session = await created(service)
    files = service.files(session.id)
    await files.write("half", bytes(600))
    with pytest.raises(FileProblem) as caught:
        await files.write("more", bytes(600))
    assert caught.value.reason == "no_space"
    await files.write("half", bytes(900))  # it replaces the old one
    await files.write("/tmp/elsewhere", bytes(5000))
    with pytest.raises(FileProblem):
        await files.move("/tmp/elsewhere", "elsewhere")
    await files.move("half", "renamed")
    result = await run(service, session, "seq 1000 >numbers")
    assert (result.verdict, b"No space left on device" in result.stderr) == (Verdict.DISK_FULL, True)
    assert (await run(service, session, "false")).verdict is Verdict.NONZERO, "only that command was refused"
    await files.remove("renamed")
    assert (await run(service, session, "seq 100 >numbers")).verdict is Verdict.OK
    status = await service.get_workspace(session.id)
    assert (status.workspace.quota_bytes, status.used_bytes, status.store) == (1000, 292, StoreKind.MEMORY)


async def test_the_quota_outlives_the_sandbox() -> None:
    service = FakeService(store=FakeStore(quota_bytes=1000))
    session = await created(service)
    await service.files(session.id).write("half", bytes(600))
    service.lose(session.id)
    await service.recreate_session(session.id)
    with pytest.raises(FileProblem):
        await service.files(session.id).write("more", bytes(600))


# --- snapshots ------------------------------------------------------------------------------------


async def test_old_snapshots_go() -> None:
    clock = Clock()
    service = FakeService(clock=clock, store=FakeStore(max_age_s=100))
    session = await created(service)
    old = await taken(service, session, "named ones too")
    clock.now += 99
    young = await taken(service, session)
    assert await kept(service, session) == [old, young]
    clock.now += 2
    assert await kept(service, session) == [young]
    with pytest.raises(NotFound):
        await service.restore_snapshot(session.id, RestoreSnapshot(old))
    with pytest.raises(NotFound):
        await created(service, snapshot=old)
    assert (await service.get_workspace(session.id)).snapshots == 1


async def test_surplus_snapshots_go_and_named_ones_stay() -> None:
    service = FakeService(clock=Clock(), store=FakeStore(max_snapshots=2))
    session, other = await created(service), await created(service)
    of_other = await taken(service, other)
    base = (await service.restore_snapshot(session.id, RestoreSnapshot(None, "one"))).snapshot
    named = await taken(service, session, "keep me")
    unnamed = [await taken(service, session) for _ in range(4)]
    assert await kept(service, session) == [base, named, *unnamed[-2:]]
    assert await kept(service, other) == [of_other]


async def test_snapshots_of_one_moment_keep_their_order() -> None:
    service = FakeService(clock=Clock())
    session = await created(service)
    ids = [await taken(service, session) for _ in range(20)]
    assert await kept(service, session) == ids


async def test_a_fake_without_snapshots_says_so() -> None:
    service = FakeService(store=FakeStore(snapshots=False))
    session = await created(service)
    assert (await service.get_workspace(session.id)).note
    with pytest.raises(Unsupported, match="cannot take snapshots"):
        await taken(service, session)
    with pytest.raises(Unsupported):
        await created(service, snapshot="snp_" + "0" * 32)
    await service.files(session.id).write("kept", b"kept")
    service.lose(session.id)
    await service.recreate_session(session.id)
    assert await service.files(session.id).read_bytes("kept") == b"kept"


async def test_what_a_replaced_sandbox_still_does_reaches_no_files() -> None:
    service = FakeService()
    session = await created(service)
    snapshot = await taken(service, session)
    before = service._record(session.id).computer
    assert before is not None
    await service.restore_snapshot(session.id, RestoreSnapshot(snapshot))
    before.tree.write("/workspace/late", b"late")
    assert (await service.files(session.id).list("/workspace")).entries == ()


# --- hibernation ----------------------------------------------------------------------------------


async def test_hibernation_by_the_given_clock() -> None:
    clock = Clock()
    service = FakeService(clock=clock, store=FakeStore(on_idle=OnIdle.HIBERNATE, hibernation_s=1000))
    session = await created(service, idle_timeout_s=100, lifetime_s=500)
    ends = await created(service, idle_timeout_s=100, on_idle=OnIdle.END)
    assert session.on_idle is OnIdle.HIBERNATE
    await service.files(session.id).write("kept", b"kept")
    clock.now += 100
    asleep = await service.get_session(session.id)
    assert (asleep.state, asleep.sandbox_id) == (SessionState.HIBERNATED, None)
    assert asleep.expires_at == 2000
    with pytest.raises(SessionEnded):
        await service.get_session(ends.id)
    clock.now += 600  # longer than its lifetime
    assert await service.files(session.id).read_bytes("kept") == b"kept"
    awake = await service.get_session(session.id)
    assert (awake.state, awake.generation, awake.woken_at) == (SessionState.ACTIVE, 2, 1700)
    clock.now += 499
    await service.files(session.id).write("kept", b"kept")
    clock.now += 1
    result = await run(service, session, "cat kept")
    assert (result.stdout, result.generation) == (b"kept", 3), "at the end of its lifetime it wakes again"
    clock.now += 1100
    with pytest.raises(SessionEnded, match="idle"):
        await service.get_session(session.id)


async def test_a_running_command_keeps_a_session_awake() -> None:
    clock = Clock()
    service = FakeService(clock=clock)
    session = await created(service, idle_timeout_s=10, on_idle=OnIdle.HIBERNATE)
    await service.start_exec(session.id, ExecRequest(command="sleep 60", exec_id="long"))
    clock.now += 100
    assert (await service.get_session(session.id)).state is SessionState.ACTIVE
    await service.kill_exec(session.id, "long")
    await service.get_exec(session.id, "long", wait_s=5)
    clock.now += 100
    assert (await service.get_session(session.id)).state is SessionState.HIBERNATED

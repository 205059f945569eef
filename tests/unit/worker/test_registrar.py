"""A worker that tells somebody about its sessions: what is told when, and what a failure to tell leaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from tests.unit.worker.conftest import OwnWorker, Scene

from sandlot.domain.capacity.limits import Limits
from sandlot.domain.capacity.pool import PoolPolicy
from sandlot.domain.errors import (
    ImageMissing,
    InvalidRequest,
    SandboxLost,
    SandlotError,
    SessionEnded,
    Unavailable,
)
from sandlot.domain.execution import ExecRequest
from sandlot.domain.ids import new_session_id
from sandlot.domain.network.variables import with_proxy
from sandlot.domain.session import (
    KEPT_WITHOUT_A_WORKER,
    Assignment,
    CreateSession,
    EndReason,
    LossReport,
    Predecessor,
    Session,
    SessionChange,
    SessionState,
)
from sandlot.testing.eventually import eventually

THREAD = CreateSession(thread="t-1")


@dataclass
class Clerk:
    """Writes down what it is told, or fails."""

    opened_: list[tuple[Session, str | None, str | None]] = field(default_factory=list)
    changed_: list[Session] = field(default_factory=list)
    withdrawn: list[tuple[str, bool]] = field(default_factory=list)
    error: Exception | None = None
    pause: asyncio.Event | None = None
    joined: bool = True
    problem: str | None = None

    @contextmanager
    def opening(self, session_id: str, *, new: bool) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.withdrawn.append((session_id, new))
            raise

    async def opened(self, session: Session, key: str | None, reservation: str | None) -> None:
        if self.pause is not None:
            await self.pause.wait()
        if self.error is not None:
            raise self.error
        self.opened_.append((session, key, reservation))

    async def changed(self, session: Session, key: str | None) -> None:
        self.changed_.append(session)

    @property
    def reservations(self) -> list[str | None]:
        return [reservation for _, _, reservation in self.opened_]


@pytest.fixture
def clerk() -> Clerk:
    return Clerk()


async def start(scene: Scene, clerk: Clerk, **options: Any) -> OwnWorker:
    return await scene.start(registrar=clerk, **options)


def lost_elsewhere(**fields: Any) -> Session:
    now = time.time()
    lost = Session(
        new_session_id(),
        "base",
        now - 100,
        now - 50,
        thread="t-1",
        generation=3,
        sandbox_id="sbx_" + 32 * "0",
        idle_timeout_s=900.0,
        lifetime_s=5000.0,
        limits=replace(Limits(), pids=77),
        metadata={"a": "b"},
    )
    return replace(lost, **fields)


# --- what is told -----------------------------------------------------------------------------


async def test_every_transition_is_told(scene: Scene, clerk: Clerk) -> None:
    worker = await start(scene, clerk)
    session = (
        await worker.create_session(CreateSession(idempotency_key="k"), Assignment(reservation="r"))
    ).session
    assert clerk.opened_ == [(session, "k", "r")]
    await worker.update_session(session.id, SessionChange(metadata={"x": "y"}))
    assert clerk.changed_[-1].metadata == {"x": "y"}
    scene.engine.sandboxes[session.sandbox_id].die()
    await eventually(lambda: clerk.changed_[-1].state is SessionState.LOST)
    anew = await worker.recreate_session(session.id)
    assert (anew.state, anew.generation) == (SessionState.ACTIVE, 2)
    assert clerk.opened_[1:] == [(anew, "k", None)]
    await worker.delete_session(session.id)
    assert clerk.changed_[-1].state is SessionState.ENDED
    assert clerk.changed_[-1].end_reason is EndReason.DELETED


async def test_expiry_is_told(scene: Scene, clerk: Clerk) -> None:
    worker = await start(scene, clerk)
    await worker.create_session(CreateSession(idle_timeout_s=0.05))
    await eventually(lambda: clerk.changed_ and clerk.changed_[-1].end_reason is EndReason.IDLE)


async def test_nobody_finds_a_session_before_it_is_recorded(scene: Scene, clerk: Clerk) -> None:
    clerk.pause = asyncio.Event()
    worker = await start(scene, clerk)
    creating = [asyncio.create_task(worker.create_session(THREAD)) for _ in range(5)]
    await eventually(lambda: scene.engine.binding.calls == 1)
    await asyncio.sleep(0.05)
    assert not any(create.done() for create in creating)
    assert (await worker.list_sessions()).sessions == ()
    assert worker.room()["base"][1] == 999, "what is being opened takes its room already"
    clerk.pause.set()
    assert len({(await create).session.id for create in creating}) == 1
    assert len(clerk.opened_) == 1


@pytest.mark.parametrize(
    "error", [Unavailable("the directory is away"), RuntimeError("nobody thought of this")], ids=str
)
async def test_session_that_cannot_be_recorded_leaves_nothing(
    scene: Scene, clerk: Clerk, error: Exception
) -> None:
    worker = await start(scene, clerk)
    clerk.error = error
    with pytest.raises(Unavailable) as refused:
        await worker.create_session(replace(THREAD, idempotency_key="k"), Assignment(reservation="r"))
    assert refused.value.retryable
    assert not refused.value.may_have_executed
    await eventually(lambda: not scene.engine.sandboxes)
    assert (await worker.list_sessions()).sessions == ()
    assert worker.recorded_sessions() == []
    assert worker.room()["base"][1] == 1000
    assert [new for _, new in clerk.withdrawn] == [True]
    clerk.error = None
    again = await worker.create_session(replace(THREAD, idempotency_key="k"), Assignment(reservation="r"))
    assert again.created
    worker = await scene.restart(worker, registrar=clerk)
    assert [session.id for session in (await worker.list_sessions()).sessions] == [again.session.id]


async def test_create_that_is_cancelled_while_it_is_recorded_leaves_nothing(
    scene: Scene, clerk: Clerk
) -> None:
    clerk.pause = asyncio.Event()
    worker = await start(scene, clerk)
    creating = asyncio.create_task(worker.create_session(CreateSession()))
    await eventually(lambda: scene.engine.binding.calls == 1)
    await asyncio.sleep(0.02)
    creating.cancel()
    await asyncio.wait([creating])
    await eventually(lambda: not scene.engine.sandboxes)
    assert worker.recorded_sessions() == []
    clerk.pause.set()
    await eventually(lambda: clerk.withdrawn)
    await asyncio.sleep(0.02)
    assert clerk.opened_ == [], "it is not told after it was taken back"
    assert len(clerk.withdrawn) == 1


async def test_it_is_told_while_its_sandbox_is_bound(scene: Scene, clerk: Clerk) -> None:
    worker = await start(scene, clerk)
    scene.engine.binding.hold()
    creating = asyncio.create_task(worker.create_session(THREAD))
    await eventually(lambda: clerk.opened_)
    assert not creating.done()
    assert (await worker.list_sessions()).sessions == ()
    # Whoever has heard of it already is not told that there is none.
    with pytest.raises(Unavailable, match="being opened"):
        await worker.delete_session(clerk.opened_[0][0].id)
    scene.engine.binding.release()
    assert clerk.opened_[0][0] == (await creating).session


async def test_sandbox_that_dies_as_it_is_bound_is_told_of_no_longer(scene: Scene, clerk: Clerk) -> None:
    worker = await start(scene, clerk, pool=PoolPolicy(size=2, min=2))
    await eventually(lambda: worker.room()["base"][0] == 2)
    for dead in list(scene.engine.sandboxes.values()):
        dead.bind_error = SandboxLost("died")
    session = (await worker.create_session(THREAD)).session
    assert [told.sandbox_id for told, _, _ in clerk.opened_][-1] == session.sandbox_id
    assert len({told.id for told, _, _ in clerk.opened_}) == 1, "one session, whatever its sandbox"
    assert clerk.withdrawn == []


async def test_session_that_got_no_sandbox_is_taken_back(scene: Scene, clerk: Clerk) -> None:
    worker = await start(scene, clerk, pool=PoolPolicy(size=2, min=2))
    await eventually(lambda: worker.room()["base"][0] == 2)
    for refusing in list(scene.engine.sandboxes.values()):
        refusing.bind_error = InvalidRequest("no such variable")
    with pytest.raises(InvalidRequest):
        await worker.create_session(THREAD)
    assert [new for _, new in clerk.withdrawn] == [True]
    assert worker.recorded_sessions() == []


async def test_session_that_is_taken_in_as_lost_does_not_end_as_idle(scene: Scene, clerk: Clerk) -> None:
    """When it was last used was known to the worker that is gone alone."""
    worker = await start(scene, clerk)
    began = time.time()
    left = lost_elsewhere(created_at=began - 2000, last_active_at=began - 2000)
    lost = await worker.adopt_lost_session(left)
    assert lost is not None
    assert lost.last_active_at >= began
    found = await worker.create_session(THREAD)
    assert (found.created, found.session.id, found.session.state) == (False, left.id, SessionState.LOST)
    assert found.session.loss is not None


# --- reservations -----------------------------------------------------------------------------


async def test_reservation_comes_back_once(scene: Scene, clerk: Clerk) -> None:
    """However many were sent here with it, and also when it was kept for what is here already."""
    worker = await start(scene, clerk)
    await asyncio.gather(*(worker.create_session(THREAD, Assignment(reservation="first")) for _ in range(20)))
    assert clerk.reservations == ["first"]
    await worker.create_session(THREAD)
    assert clerk.reservations == ["first"]
    for _ in range(2):
        again = await worker.create_session(THREAD, Assignment(reservation="second"))
        assert not again.created
    assert clerk.reservations == ["first", "second"]


async def test_session_survives_a_reservation_that_could_not_be_given_back(
    scene: Scene, clerk: Clerk
) -> None:
    worker = await start(scene, clerk)
    session = (await worker.create_session(THREAD)).session
    clerk.error = Unavailable("the directory is away")
    with pytest.raises(Unavailable):
        await worker.create_session(THREAD, Assignment(reservation="r"))
    assert worker.generation_of(session.id) == 1
    assert (await worker.execute(session.id, ExecRequest("true"))).exit_code == 0


# --- predecessors -----------------------------------------------------------------------------


async def test_predecessor_of_another_worker_is_named_if_it_ended_later(scene: Scene, clerk: Clerk) -> None:
    worker = await start(scene, clerk)
    elsewhere = Predecessor(new_session_id(), EndReason.IDLE, time.time() - 100)
    first = (await worker.create_session(THREAD, Assignment(predecessor=elsewhere))).session
    assert first.predecessor == elsewhere
    await worker.delete_session(first.id)
    second = (await worker.create_session(THREAD, Assignment(predecessor=elsewhere))).session
    assert second.predecessor is not None
    assert second.predecessor.id == first.id


# --- taking over ------------------------------------------------------------------------------


async def test_session_of_a_worker_that_is_gone_gets_a_sandbox_here(scene: Scene, clerk: Clerk) -> None:
    worker = await start(scene, clerk)
    lost = lost_elsewhere()
    opened = await worker.create_session(
        CreateSession(thread="t-1", env={"NEW": "1"}, lifetime_s=1.0), Assignment("r", lost=lost)
    )
    session = opened.session
    assert not opened.created, "it was there before"
    assert session.workspace is not None, "with new files"
    assert (
        replace(
            session,
            generation=3,
            sandbox_id=lost.sandbox_id,
            last_active_at=lost.last_active_at,
            loss=None,
            workspace=None,
        )
        == lost
    )
    assert session.generation == 4
    assert session.last_active_at >= time.time() - 10
    assert session.loss is not None
    assert (session.loss.generation, session.loss.kept) == (3, KEPT_WITHOUT_A_WORKER)
    assert "its worker is gone" in session.loss.reason
    assert any("environment variables" in thing for thing in session.loss.lost)
    assert scene.engine.sandboxes[session.sandbox_id].env == with_proxy({"NEW": "1"})
    assert clerk.opened_ == [(session, None, "r")]
    same = await worker.create_session(CreateSession(thread="t-1"), Assignment("r", lost=lost))
    assert same.session.id == lost.id
    assert same.session.generation == 4
    assert len(clerk.opened_) == 1
    worker = await scene.restart(worker, registrar=clerk)
    assert (await worker.get_session(lost.id)).generation == 4


async def test_many_take_it_over_once(scene: Scene, clerk: Clerk) -> None:
    worker = await start(scene, clerk)
    lost = lost_elsewhere(thread=None)
    opened = await asyncio.gather(
        *(worker.create_session(CreateSession(), Assignment("r", lost=lost)) for _ in range(10))
    )
    assert {one.session.generation for one in opened} == {4}
    assert len(scene.engine.made) == 1


async def test_loss_that_was_reported_before_is_kept(scene: Scene, clerk: Clerk) -> None:
    worker = await start(scene, clerk)
    loss = LossReport(3, 5.0, "its memory ran out", ("all",), ("nothing",))
    lost = lost_elsewhere(state=SessionState.LOST, sandbox_id=None, loss=loss)
    session = (await worker.create_session(THREAD, Assignment(lost=lost))).session
    assert session.loss is not None
    assert session.loss.reason == "its memory ran out; then its worker is gone"
    assert session.loss.at == 5.0


async def test_worker_that_has_the_session_itself(scene: Scene, clerk: Clerk) -> None:
    worker = await start(scene, clerk)
    mine = (await worker.create_session(THREAD)).session
    same = await worker.create_session(THREAD, Assignment(lost=mine))
    assert (same.session.id, same.session.generation, same.created) == (mine.id, 1, False)
    scene.engine.sandboxes[mine.sandbox_id].die()
    await eventually(lambda: clerk.changed_ and clerk.changed_[-1].state is SessionState.LOST)
    anew = await worker.create_session(THREAD, Assignment(lost=mine))
    assert (anew.session.id, anew.session.generation) == (mine.id, 2)
    assert anew.session.state is SessionState.ACTIVE


async def test_session_whose_lifetime_is_over_ends_instead(scene: Scene, clerk: Clerk) -> None:
    """And the fleet is told: nobody else is left who could."""
    worker = await start(scene, clerk)
    lost = lost_elsewhere(lifetime_s=10.0)
    with pytest.raises(SessionEnded):
        await worker.create_session(THREAD, Assignment(lost=lost))
    assert clerk.changed_[-1].id == lost.id
    assert clerk.changed_[-1].end_reason is EndReason.LIFETIME
    assert scene.engine.made == []
    following = (await worker.create_session(THREAD)).session
    assert following.predecessor is not None
    assert following.predecessor.id == lost.id


async def test_session_that_could_not_be_recorded_here_stays_lost(scene: Scene, clerk: Clerk) -> None:
    """The directory may have heard of it: then this worker is the one to ask, and says what became of it."""
    worker = await start(scene, clerk)
    lost = lost_elsewhere()
    clerk.error = Unavailable("the answer was lost")
    with pytest.raises(Unavailable):
        await worker.create_session(THREAD, Assignment("r", lost=lost))
    await eventually(lambda: not scene.engine.sandboxes)
    session = await worker.get_session(lost.id)
    # As it was lost elsewhere: the generation that nobody heard of never was.
    assert (session.state, session.generation) == (SessionState.LOST, 3)
    assert session.loss is not None
    assert (session.loss.generation, session.loss.kept) == (3, KEPT_WITHOUT_A_WORKER), "as it was lost there"
    assert clerk.changed_[-1] == session
    assert [new for _, new in clerk.withdrawn] == [False]
    clerk.error = None
    anew = (await worker.create_session(THREAD, Assignment("r", lost=lost))).session
    assert (anew.id, anew.generation, anew.state) == (lost.id, 4, SessionState.ACTIVE)


# --- giving up --------------------------------------------------------------------------------


async def test_session_that_is_given_up_leaves_nothing_and_is_not_told(scene: Scene, clerk: Clerk) -> None:
    worker = await start(scene, clerk)
    session = (await worker.create_session(replace(THREAD, idempotency_key="k"))).session
    kept = (await worker.create_session(CreateSession())).session
    running = asyncio.create_task(worker.execute(session.id, ExecRequest("wait")))
    await eventually(lambda: scene.engine.sandboxes[session.sandbox_id].execs)
    await worker.give_up([session.id, "ses_unknown"])
    with pytest.raises(SandboxLost) as lost:
        await running
    assert "another worker" in lost.value.message
    assert lost.value.may_have_executed
    await eventually(lambda: set(scene.engine.sandboxes) == {kept.sandbox_id})
    assert worker.session_ids == {kept.id}
    assert worker.generation_of(session.id) is None
    assert worker.generation_of(kept.id) == 1
    assert clerk.changed_ == []
    worker = await scene.restart(worker, registrar=clerk)
    assert worker.session_ids == {kept.id}
    # It may come back, from yet another worker that is gone by then.
    back = await worker.create_session(THREAD, Assignment(lost=replace(session, generation=2)))
    assert (back.session.id, back.session.generation) == (session.id, 3)


async def test_who_waited_while_it_was_given_up_is_sent_back_to_the_fleet(scene: Scene, clerk: Clerk) -> None:
    worker = await start(scene, clerk)
    session = (await worker.create_session(THREAD)).session
    live = worker._sessions.table.get("default", session.id)
    async with live.transition_lock:
        giving_up = asyncio.create_task(worker.give_up([session.id]))
        await asyncio.sleep(0.02)
        calls = [
            asyncio.create_task(worker.delete_session(session.id)),
            asyncio.create_task(worker.update_session(session.id, SessionChange(metadata={}))),
        ]
        await asyncio.sleep(0.02)
    await giving_up
    refused = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(error) for error in refused] == [Unavailable, Unavailable]
    assert not any(error.may_have_executed for error in refused if isinstance(error, SandlotError))
    assert clerk.changed_ == []


# --- room and draining ------------------------------------------------------------------------


async def test_room(scene: Scene, clerk: Clerk) -> None:
    worker = scene.worker(registrar=clerk, pool=PoolPolicy(size=2, min=2), max_sessions=5)
    assert worker.room() == {"base": (0, 0)}, "not open yet"
    assert not worker.is_open
    await worker.open()
    await eventually(lambda: worker.room() == {"base": (2, 5)})
    session = (await worker.create_session(CreateSession())).session
    await eventually(lambda: worker.room() == {"base": (2, 4)})
    scene.engine.sandboxes[session.sandbox_id].die()
    await eventually(lambda: clerk.changed_)
    assert worker.room()["base"][1] == 4, "a lost session may want a sandbox again"
    await worker.delete_session(session.id)
    assert worker.room()["base"][1] == 5


async def test_environment_that_cannot_be_made_offers_only_what_is_ready(scene: Scene, clerk: Clerk) -> None:
    """Otherwise the worker whose engine is broken would look like the emptiest, and get everything."""
    worker = await start(scene, clerk)
    assert worker.room()["base"][1] == 1000
    scene.engine.creating.error = ImageMissing("there is no such image")
    with pytest.raises(Unavailable, match="no such image"):
        async with asyncio.timeout(30):
            await asyncio.gather(*(worker.create_session(CreateSession()) for _ in range(3)))
    await eventually(lambda: worker.room() == {"base": (0, 0)})


async def test_draining_worker_serves_what_it_has(scene: Scene, clerk: Clerk) -> None:
    worker = await start(scene, clerk)
    session = (await worker.create_session(THREAD)).session
    assert not worker.draining
    worker.set_draining(True)
    assert worker.draining
    assert worker.room() == {"base": (0, 0)}
    assert (await worker.create_session(THREAD)).session.id == session.id
    with pytest.raises(Unavailable) as refused:
        await worker.create_session(CreateSession())
    assert refused.value.details == {"reason": "draining"}
    health = await worker.health()
    assert (health.ready, health.creates) == (True, False)
    assert health.problems == ("draining",)


async def test_worker_that_has_not_joined_is_not_ready(scene: Scene, clerk: Clerk) -> None:
    worker = await start(scene, clerk)
    assert (await worker.health()).ready
    clerk.joined, clerk.problem = False, "the directory is away"
    health = await worker.health()
    assert not health.ready
    assert health.problems == ("the directory is away",)


async def test_ended_sessions_are_told_again_for_an_hour(scene: Scene, clerk: Clerk) -> None:
    worker = await start(scene, clerk)
    living = (await worker.create_session(CreateSession(idempotency_key="k"))).session
    gone = (await worker.create_session(CreateSession())).session
    await worker.delete_session(gone.id)
    told = {session.id: (session.state, key) for session, key in worker.recorded_sessions()}
    assert told == {living.id: (SessionState.ACTIVE, "k"), gone.id: (SessionState.ENDED, None)}
    table = worker._sessions.table
    assert table.ended_since(time.time() + 1, 10) == []
    assert table.ended_since(0.0, 0) == []

"""The history of a fleet: what its workers recorded, in one order, and who of them did not answer."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sandlot.client.async_client import AsyncClient
from sandlot.domain.callers.principal import OWNER, Principal, Scope
from sandlot.domain.errors import Forbidden, Unavailable, Unsupported
from sandlot.domain.execution import ExecRequest
from sandlot.domain.history.events import Event
from sandlot.domain.history.query import EventPage, EventQuery
from sandlot.domain.session import CreateSession
from sandlot.fleet.coordinator import asked_workers
from sandlot.fleet.coordinator import history as fleet_history
from tests.fleet.fakes import TIMINGS, Scene, nobody


async def on_both(scene: Scene, count: int = 3) -> list[str]:
    """Commands on both workers by turns, recorded there without the coordinator's knowledge."""
    commands = []
    sessions = {
        name: (await worker.create_session(CreateSession(thread=f"on-{name}"))).session
        for name, worker in scene.workers.items()
    }
    for number in range(count):
        for name, worker in scene.workers.items():
            commands.append(f"echo {number} on {name}")
            await worker.execute(sessions[name].id, ExecRequest(command=commands[-1]))
    return commands


async def all_pages(scene: Scene, query: EventQuery) -> list[Event]:
    events: list[Event] = []
    while True:
        page = await scene.coordinator.list_events(query)
        events += page.events
        assert len(page.events) <= query.limit
        if not page.more:
            return events
        query = replace(query, after=page.next)


@pytest.mark.parametrize("limit", [1, 4, 1000])
async def test_pages_of_all_workers_are_one_history(scene: Scene, limit: int) -> None:
    commands = await on_both(scene)
    events = await all_pages(scene, EventQuery(limit=limit))
    assert [event.details["command"] for event in events if event.kind == "exec.started"] == commands
    assert [event.id for event in events] == sorted(event.id for event in events)
    assert len(events) == 2 * 2 + 2 * 2 * 3


async def test_a_worker_that_is_away_is_named_and_its_events_follow(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = await on_both(scene)
    reference = next(status.ref for status in await scene.directory.workers() if status.ref.id == "w2")
    lease = scene.workers["w2"].lease
    await scene.join("w2", nobody())
    monkeypatch.setattr(asked_workers, "FRESH_S", 0.0)
    page = await scene.coordinator.list_events(EventQuery(limit=1000))
    assert page.missing == ("w2",)
    started = [event for event in page.events if event.kind == "exec.started"]
    assert [event.details["command"] for event in started] == [text for text in commands if "w1" in text]

    client = AsyncClient(service=scene.coordinator)
    with pytest.raises(Unavailable, match="w2") as raised:
        async for _ in client.events():
            pass
    assert raised.value.details["missing"] == ["w2"]
    assert len([event async for event in client.events(partial=True)]) == len(page.events)

    assert lease is not None
    await scene.join("w2", reference.url)
    rest = await scene.coordinator.list_events(EventQuery(after=page.next, limit=1000))
    assert rest.missing == ()
    later = [event for event in rest.events if event.kind == "exec.started"]
    assert [event.details["command"] for event in later] == [text for text in commands if "w2" in text]


async def test_a_worker_that_is_gone_is_named_without_being_asked(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await on_both(scene)
    await scene.pass_time(TIMINGS.lease_s + TIMINGS.lost_after_s + 1, silent=("w2",))
    monkeypatch.setattr(asked_workers, "FRESH_S", 0.0)
    page = await scene.coordinator.list_events(EventQuery())
    assert page.missing == ("w2",)
    assert page.events


async def test_a_worker_that_hangs_holds_nobody_up(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await on_both(scene)
    monkeypatch.setattr(asked_workers, "WORKER_WITHIN_S", 0.5)
    hangs = asyncio.Event()

    async def hang(*_: object) -> EventPage:
        await hangs.wait()
        raise AssertionError

    monkeypatch.setattr(scene.workers["w2"]._history, "page", hang)
    page = await asyncio.wait_for(scene.coordinator.list_events(EventQuery()), 10)
    assert page.missing == ("w2",)
    assert page.events
    hangs.set()


async def test_a_session_that_never_moved_is_asked_for_at_its_own_worker(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = (await scene.coordinator.create_session(CreateSession())).session
    await scene.coordinator.execute(session.id, ExecRequest(command="echo mine"))
    away = "w2" if await _has(scene, "w1", session.id) else "w1"
    await scene.join(away, nobody())
    monkeypatch.setattr(asked_workers, "FRESH_S", 0.0)
    page = await scene.coordinator.list_events(EventQuery(session_id=session.id))
    assert page.missing == ()
    assert [event.kind for event in page.events][-1] == "exec.ended"


async def _has(scene: Scene, worker: str, session_id: str) -> bool:
    page = await scene.workers[worker].list_events(EventQuery(session_id=session_id))
    return bool(page.events)


async def test_the_directory_may_be_away(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await on_both(scene)
    before = await scene.coordinator.list_events(EventQuery(limit=1000))

    async def away(*_: object) -> None:
        raise Unavailable("Redis cannot be reached")

    monkeypatch.setattr(scene.directory, "workers", away)
    monkeypatch.setattr(scene.directory, "find", away)
    monkeypatch.setattr(asked_workers, "FRESH_S", 0.0)
    assert (await scene.coordinator.list_events(EventQuery(limit=1000))).events == before.events
    with pytest.raises(Unavailable):
        await scene.another().list_events(EventQuery())


async def test_events_of_any_worker_are_followed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_history, "LOOK_EVERY_S", 0.05)
    await on_both(scene, count=1)
    first = await scene.coordinator.list_events(EventQuery(limit=1000))
    following = asyncio.create_task(
        scene.coordinator.list_events(EventQuery(after=first.next, wait_s=30, limit=1000))
    )
    session = (await scene.workers["w2"].create_session(CreateSession())).session
    page = await asyncio.wait_for(following, 20)
    assert {event.session_id for event in page.events} == {session.id}


async def test_what_a_caller_may_not_see_is_refused_here(scene: Scene) -> None:
    await on_both(scene)
    reader = scene.coordinator.acting_for(Principal("default", frozenset({Scope.SESSIONS_READ})))
    events = (await reader.list_events(EventQuery(limit=1000))).events
    assert {"command" in event.details for event in events} == {False}
    with pytest.raises(Forbidden):
        await reader.list_events(EventQuery(server=True))
    assert (await scene.coordinator.acting_for(OWNER).list_events(EventQuery(server=True))).events == ()


async def test_workers_without_a_history_say_so(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(*_: object) -> EventPage:
        raise Unsupported("This server keeps no history.")

    for worker in scene.workers.values():
        monkeypatch.setattr(worker._history, "page", none)
    with pytest.raises(Unsupported, match="keeps no history"):
        await scene.coordinator.list_events(EventQuery())


async def test_many_workers_are_asked_a_few_at_a_time(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked_workers, "AT_ONCE", 4)
    at_once = most = 0

    class Link:
        async def list_events(self, query: EventQuery) -> EventPage:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            assert query.limit == asked_workers.LEAST_EACH
            await asyncio.sleep(0.01)
            at_once -= 1
            return EventPage((), str(query.position))

    async def to(*_: object) -> Link:
        return Link()

    one = (await scene.directory.workers())[0].ref
    workers = [replace(one, id=f"w{number}") for number in range(60)]
    monkeypatch.setattr(scene.coordinator._links, "to", to)
    page = await scene.coordinator._parts.history._ask(workers, OWNER, EventQuery(limit=100))
    assert (page.missing, most) == ((), 4)

"""What version 0.2 left behind is taken over with all sessions. ``make_fixture.py`` made it, with that version."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis import Redis

from sandlot.domain.callers.limits import Allowance, CallerLimits, tenant_holder
from sandlot.domain.errors import Busy, NotFound, SessionEnded, Unavailable
from sandlot.domain.execution import ExecRequest
from sandlot.domain.history.query import EventQuery
from sandlot.domain.network.variables import with_proxy
from sandlot.domain.session import Assignment, CreateSession, Session, SessionState
from sandlot.fleet.directory.contract import (
    LostPlace,
    Place,
    PlacementRequest,
    SessionEntry,
    Timings,
    WorkerCard,
    WorkerState,
)
from sandlot.fleet.directory.redis_directory import RedisDirectory
from sandlot.fleet.membership.membership import Membership
from sandlot.testing.directory_suite.redis_server import RedisServer, redis_server
from sandlot.testing.eventually import eventually
from sandlot.worker.store.database import Store
from tests.owned import OwnWorker
from tests.unit.worker.conftest import Scene
from tests.unit.worker.scripted import Engine

LEFT = Path(__file__).parent / "from_0_2"
SESSIONS = json.loads((LEFT / "sessions.json").read_text())
IDS: dict[str, str] = SESSIONS["ids"]
KNOWN = {name: msgspec.convert(each, Session) for name, each in SESSIONS["known"].items()}
OF_THE_WORKER = KNOWN.keys() - {"elsewhere"}
WITHIN_S = 30.0
# The fixture is older than any lease, and than the day after which lost sessions are forgotten.
TIMINGS = Timings(lease_s=2.0, lost_after_s=2.0, remember_lost_s=1e9)
DEADLINE_S = 10.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A copy of the folder of worker w1, as its ``kill -9`` left it."""
    path = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    for name in ("worker.db", "worker.db-wal", "member.json"):
        shutil.copy(LEFT / name, path / name)
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def engine() -> Engine:
    """Every sandbox of w1 still runs, but for that of the session "plain"."""
    engine = Engine()
    for name in OF_THE_WORKER - {"plain"}:
        session = KNOWN[name]
        if session.sandbox_id is not None:
            engine.put(session.sandbox_id, limits=session.limits)
    return engine


@asynccontextmanager
async def upgraded(engine: Engine, folder: Path, **options: Any) -> AsyncIterator[OwnWorker]:
    worker = Scene(engine, folder).worker(allow_never=True, **options)
    await worker.open()
    try:
        await eventually(lambda: not any(one.preparing for one in worker._parts.sessions.table), WITHIN_S)
        yield worker
    finally:
        await worker.close()


def lasting(session: Session) -> dict[str, Any]:
    """What an upgrade must not change. A start resets when a session was last used, and names its workspace, which
    had no id in 0.2.
    """
    fields: dict[str, Any] = msgspec.to_builtins(session)
    for name in ("last_active_at", "state", "sandbox_id", "loss", "workspace"):
        del fields[name]
    return fields


async def test_the_database(folder: Path) -> None:
    """Read as it is: every session, with its variables, its key and how it ended."""
    store = Store(folder / "worker.db", "worker")
    await store.open()
    records = {record.session.id: record for record in await store.sessions()}
    await store.close()
    assert records.keys() == {IDS[name] for name in IDS.keys() - {"elsewhere"}}
    assert {record.session.tenant for record in records.values()} == {"default"}
    assert {record.session.created_by for record in records.values()} == {""}
    thread = records[IDS["thread"]]
    assert (thread.env, thread.idempotency_key) == ({"TOKEN": "of the first", "EMPTY": ""}, "once")
    ended = records[IDS["ended"]]
    assert (ended.session.state, ended.session.end_reason, ended.env) == ("ended", "deleted", {})


async def test_a_workers_folder(folder: Path, engine: Engine) -> None:
    async with upgraded(engine, folder) as worker:
        listed = {session.id: session for session in (await worker.list_sessions()).sessions}
        # One hour has passed since 0.2 stopped, and much more.
        assert IDS["expiring"] not in listed or listed[IDS["expiring"]].state is SessionState.ACTIVE
        for name in OF_THE_WORKER - {"expiring"}:
            assert lasting(listed[IDS[name]]) == lasting(KNOWN[name]), name
        states = {name: listed[IDS[name]].state.value for name in OF_THE_WORKER - {"expiring"}}
        assert states == {
            "plain": "lost",
            "thread": "active",
            "limits": "active",
            "lost": "lost",
            "recreated": "active",
            "successor": "active",
        }
        assert listed[IDS["lost"]].loss == KNOWN["lost"].loss
        loss = listed[IDS["plain"]].loss
        assert loss is not None
        assert (loss.generation, bool(loss.reason)) == (1, True)
        with pytest.raises((SessionEnded, NotFound)):
            await worker.get_session(IDS["ended"])


async def test_its_sessions_go_on(folder: Path, engine: Engine) -> None:
    """Threads, keys, variables and results of commands, and what is new: the history."""
    async with upgraded(engine, folder) as worker:
        for name in ("thread", "lost", "recreated", "successor"):
            thread = KNOWN[name].thread
            opened = await worker.create_session(CreateSession(thread=thread))
            assert (opened.session.id, opened.created) == (IDS[name], False)
        sandbox_id = KNOWN["thread"].sandbox_id
        assert sandbox_id is not None
        assert engine.sandboxes[sandbox_id].env == with_proxy({"TOKEN": "of the first", "EMPTY": ""})
        result = await worker.execute(IDS["thread"], ExecRequest(command="echo after"))
        assert result.exit_code == 0
        recreated = await worker.recreate_session(IDS["lost"])
        assert (recreated.state, recreated.generation) == (SessionState.ACTIVE, 2)
        assert recreated.sandbox_id is not None
        assert engine.sandboxes[recreated.sandbox_id].env == with_proxy({"TOKEN": "of the lost"})
        await worker.delete_session(IDS["limits"])

        async def kinds(name: str) -> list[str]:
            page = await worker.list_events(EventQuery(session_id=IDS[name]))
            return [str(event.kind) for event in page.events]

        assert "exec.ended" in await kinds("thread")
        assert "session.ended" in await kinds("limits")
    async with upgraded(engine, folder) as worker:  # and once more, from what the new version has written
        assert (await worker.get_session(IDS["lost"])).generation == 2
        assert (await worker.get_session(IDS["thread"])).thread == "conversation-1"


# --- Redis --------------------------------------------------------------------------------------


def raw(text: str) -> bytes:
    return bytes.fromhex(text[4:]) if text.startswith("hex:") else text.encode()


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """As the old fleet left it."""
    with redis_server() as server, Redis.from_url(server.url) as redis:
        for key, entry in json.loads((LEFT / "redis.json").read_text()).items():
            name, value = raw(key), entry["value"]
            match entry["type"]:
                case "hash":
                    redis.hset(name, mapping={raw(field): raw(each) for field, each in value.items()})
                case "zset":
                    redis.zadd(name, {raw(member): score for member, score in value.items()})
                case "set":
                    redis.sadd(name, *map(raw, value))
                case "string":
                    redis.set(name, raw(value))
        yield server


@asynccontextmanager
async def directory_of(redis: RedisServer) -> AsyncIterator[RedisDirectory]:
    directory = RedisDirectory.open(redis.url, timings=TIMINGS, deadline_s=DEADLINE_S)
    try:
        yield directory
    finally:
        await directory.close()


@asynccontextmanager
async def member(
    directory: RedisDirectory, name: str, engine: Engine, folder: Path
) -> AsyncIterator[OwnWorker]:
    """A worker of this version, in the fleet."""
    card = WorkerCard(name, f"http://{name}.example:8000", "next")
    membership = Membership(directory, card, folder)
    async with upgraded(engine, folder, registrar=membership) as worker:
        try:
            membership.lock()
            await membership.start(worker)
            await eventually(lambda: membership.joined and membership._recorder.complete, WITHIN_S)
            yield worker
        finally:
            await membership.close()


async def listed(directory: RedisDirectory) -> dict[str, tuple[Session, str, WorkerState]]:
    page = await directory.page("default")
    return {found.session.id: (found.session, found.worker.id, found.worker.state) for found in page.found}


async def settled(directory: RedisDirectory) -> None:
    async def lists() -> bool:
        try:
            await directory.page("default")
        except Unavailable:
            return False
        return True

    await eventually(lists, WITHIN_S, "the directory has settled")


async def place(directory: RedisDirectory, **want: Any) -> Place | LostPlace:
    """As a coordinator asks, again while the new worker has not reported its room yet."""
    while True:
        try:
            return await directory.place(PlacementRequest("default", "base", **want))
        except Unavailable:
            await asyncio.sleep(0.1)


async def test_a_coordinator_of_this_version_lists_what_the_old_fleet_recorded(redis: RedisServer) -> None:
    """Before any worker has come back: sessions, threads and losses are those that 0.2 recorded."""
    async with directory_of(redis) as directory:
        await settled(directory)
        found = await listed(directory)
        assert found.keys() == {session.id for session in KNOWN.values()}
        for name, known in KNOWN.items():
            session, worker, state = found[IDS[name]]
            assert lasting(session) == lasting(known), name
            assert (session.state, session.loss) == (known.state, known.loss)
            assert (worker, state) == ("w2" if name == "elsewhere" else "w1", WorkerState.GONE)
            if known.thread is not None:
                placed = await place(directory, thread=known.thread)
                assert isinstance(placed, LostPlace)
                assert placed.session.id == IDS[name]
        # Entries of 0.2 do not say what they use.
        assert (await directory.use(tenant_holder("default"))).sessions == 0


async def test_a_fleet_takes_over(redis: RedisServer, folder: Path, engine: Engine) -> None:
    """w1 comes back with its sessions, which then count. The session of w2, which stays away, moves to it."""
    async with directory_of(redis) as directory, member(directory, "w1", engine, folder) as worker:
        await settled(directory)
        mine = {session.id for session in (await worker.list_sessions()).sessions}
        found = await listed(directory)
        assert {name for name in KNOWN if IDS[name] not in found} <= {"expiring"}
        for name in OF_THE_WORKER - {"expiring"}:
            session, holder, state = found[IDS[name]]
            assert (holder, state) == ("w1", WorkerState.ALIVE)
            assert lasting(session) == lasting(KNOWN[name])
        use = await directory.use(tenant_holder("default"))
        assert use.sessions == len(mine)
        counted = [found[session_id][0].limits for session_id in mine]
        assert use.millicpus == sum(round(limits.cpus * 1000) for limits in counted)
        for name in ("thread", "lost", "recreated", "successor"):
            placed = await place(directory, thread=KNOWN[name].thread)
            assert isinstance(placed, Place)
            assert placed.worker.id == "w1"
            assert placed.reservation is None
        at_most = Allowance(tenant_holder("default"), CallerLimits(sessions=len(mine)))
        with pytest.raises(Busy):
            await place(directory, allowances=(at_most,))

        elsewhere = IDS["elsewhere"]
        placed = await place(directory, thread="conversation-6", takes_over=elsewhere)
        assert isinstance(placed, Place)
        assert placed.lost is not None
        opened = await worker.create_session(
            CreateSession(thread="conversation-6", idempotency_key="again", recreate_lost=True),
            Assignment(reservation=placed.reservation, lost=placed.lost),
        )
        assert (opened.session.id, opened.session.generation) == (elsewhere, 2)
        assert opened.session.metadata == {"user": "eve"}
        session, holder, state = (await listed(directory))[elsewhere]
        assert (session.generation, holder, state) == (2, "w1", WorkerState.ALIVE)
        assert (await directory.use(tenant_holder("default"))).sessions == len(mine) + 1


async def test_the_old_worker_is_fenced(redis: RedisServer, folder: Path, engine: Engine) -> None:
    """A process of 0.2 that still runs, with the lease that it had, writes nothing once w1 has come back."""
    async with directory_of(redis) as directory, member(directory, "w1", engine, folder):
        fields = json.loads((LEFT / "redis.json").read_text())["sandlot:{default}:w:w1"]["value"]
        await settled(directory)
        before = await listed(directory)
        with Redis.from_url(redis.url) as plain:
            assert plain.hget("sandlot:{default}:w:w1", "token") != fields["token"].encode()
            assert int(plain.hget("sandlot:{default}:w:w1", "epoch")) > int(fields["epoch"])  # type: ignore[arg-type]
        assert before.keys() == (await listed(directory)).keys()


def test_the_fixture_has_every_state() -> None:
    assert {session.state.value for session in KNOWN.values()} == {"active", "lost"}
    assert max(session.generation for session in KNOWN.values()) == 2
    assert KNOWN["successor"].predecessor is not None
    assert SessionEntry(KNOWN["plain"]).session.created_by == ""

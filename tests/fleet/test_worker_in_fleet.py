"""Real workers on Docker as members of a fleet whose directory is in Redis."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import pytest_asyncio

from sandlot.config.reading import server_settings
from sandlot.domain.errors import NotFound, Unavailable
from sandlot.domain.execution import ExecRequest
from sandlot.domain.recovery import Purpose
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
from sandlot.testing.directory_suite.redis_server import RedisServer
from sandlot.testing.eventually import eventually
from sandlot.wiring.worker import worker_parts
from tests.docker.conftest import docker
from tests.fleet.crew import Troubled
from tests.owned import OwnWorker

pytestmark = pytest.mark.docker

TIMINGS = Timings(lease_s=2.0, lost_after_s=2.0)
# One loop has the worker, its engine's connections and the test: under load it comes round late.
DEADLINE_S = 10.0
RECORDED_WITHIN_S = 30.0
# A busy engine takes its time.
REMOVED_WITHIN_S = 100.0


@dataclass
class Placed:
    name: str
    worker: OwnWorker
    membership: Membership
    directory: Troubled


@asynccontextmanager
async def in_fleet(redis: RedisServer, cell: str, folder: Path) -> AsyncIterator[Placed]:
    """As ``sandlot worker`` begins and ends, with the same folder again as another life of the same worker."""
    name = f"test-{cell}-{folder.name}"
    settings = server_settings(
        worker_id=name, data_dir=folder, pool_size=1, min_pool_size=1, max_pool_size=2, max_sessions=20
    )
    redis_directory = RedisDirectory.open(redis.url, cell=cell, timings=TIMINGS, deadline_s=DEADLINE_S)
    directory = Troubled(redis_directory)
    membership = Membership(directory, WorkerCard(name, f"http://{name}:8000", "1.0"), folder)  # type: ignore[arg-type]
    worker = OwnWorker(**await worker_parts(settings), registrar=membership)
    try:
        membership.lock()
        await worker.open()
        await membership.start(worker)
        await eventually(
            lambda: bool(directory.reports) and directory.reports[-1].complete, RECORDED_WITHIN_S
        )
        yield Placed(name, worker, membership, directory)
    finally:
        await worker.close()
        await membership.close()
        await redis_directory.close()


@pytest.fixture
def cell() -> str:
    return f"docker-{secrets.token_hex(4)}"


@pytest_asyncio.fixture
async def folders() -> AsyncIterator[tuple[Path, Path]]:
    path = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    yield path / "one", path / "two"
    shutil.rmtree(path, ignore_errors=True)


async def create(at: Placed, request: CreateSession) -> Session:
    """As a coordinator does."""

    async def placed() -> Place | None:
        try:
            place = await at.directory.place(
                PlacementRequest(
                    "default", "base", thread=request.thread, idempotency_key=request.idempotency_key
                )
            )
        except Unavailable:  # the directory is unsettled for one lease after its birth
            return None
        assert isinstance(place, Place)
        assert place.worker.id == at.name
        found.append(place)
        return place

    found: list[Place] = []
    await eventually(placed, RECORDED_WITHIN_S, "the directory has settled, and the worker is alive")
    return (await at.worker.create_session(request, Assignment(reservation=found[0].reservation))).session


async def forget(at: Placed, *sessions: Session) -> None:
    for session in sessions:
        await at.worker.delete_session(session.id)


async def test_create_with_its_reservation(redis: RedisServer, cell: str, folders: tuple[Path, Path]) -> None:
    async with in_fleet(redis, cell, folders[0]) as at:
        session = await create(at, CreateSession(thread="t", idempotency_key="k"))
        status = await at.directory.status()
        assert (status.sessions, status.reservations) == (1, 0)
        found = await at.directory.find(session.id)
        assert (found.worker.id, found.session.sandbox_id) == (at.name, session.sandbox_id)
        await at.membership.confirm()
        result = await at.worker.execute(session.id, ExecRequest("echo hello"))
        assert result.stdout == b"hello\n"
        await forget(at, session)

        async def is_ended() -> bool:
            return (await at.directory.find(session.id)).session.state is SessionState.ENDED

        await eventually(is_ended)  # who deletes waits for the record, but not for ever


async def test_record_that_fails_leaves_no_container(
    redis: RedisServer, cell: str, folders: tuple[Path, Path]
) -> None:
    async with in_fleet(redis, cell, folders[0]) as at:
        before = await create(at, CreateSession())
        at.directory.unanswered.add("record")
        with pytest.raises(Unavailable) as refused:
            await at.worker.create_session(CreateSession(thread="t", idempotency_key="k"))
        assert not refused.value.may_have_executed
        at.directory.mend()
        assert at.worker.session_ids == {before.id}

        # What is warm is nobody's: the pool's own ids are told apart by what the worker has on record.
        async def nothing_is_left() -> bool:
            held = await at.directory.held(at.name)
            purposes = await at.worker._store.sandboxes()
            used = [record.id for record in purposes if record.purpose is not Purpose.WARM]
            return set(held.ids) == {before.id} and used == [before.sandbox_id]

        await eventually(nothing_is_left, REMOVED_WITHIN_S)

        # Listed first: the pool records what it makes before it makes it.
        async def all_are_on_record() -> bool:
            found = await containers(at.name)
            return found <= {f"sandlot-{record.id}" for record in await at.worker._store.sandboxes()}

        await eventually(all_are_on_record)
        await forget(at, before)


async def containers(name: str) -> set[str]:
    listed = await asyncio.to_thread(
        docker, "ps", "-a", "--filter", f"label=sandlot.owner={name}", "--format", "{{.Names}}"
    )
    return set(str(listed).split())


async def test_given_up_session_leaves_no_container(
    redis: RedisServer, cell: str, folders: tuple[Path, Path]
) -> None:
    async with in_fleet(redis, cell, folders[0]) as at:
        session, kept = await create(at, CreateSession()), await create(at, CreateSession())
        container = f"sandlot-{session.sandbox_id}"
        assert container in await containers(at.name)
        await at.worker.give_up([session.id])

        async def is_gone() -> bool:
            return container not in await containers(at.name)

        await eventually(is_gone, REMOVED_WITHIN_S)
        with pytest.raises(NotFound):
            await at.worker.get_session(session.id)
        assert (await at.worker.execute(kept.id, ExecRequest("true"))).exit_code == 0
        await forget(at, kept)


async def test_session_of_a_dead_worker_is_taken_over_and_given_up_when_it_comes_back(
    redis: RedisServer, cell: str, folders: tuple[Path, Path]
) -> None:
    async with in_fleet(redis, cell, folders[0]) as first:
        session = await create(first, CreateSession(thread="t", env={"A": "1"}, metadata={"m": "1"}))
        await first.worker.execute(session.id, ExecRequest("echo mine > /workspace/file"))
    async with in_fleet(redis, cell, folders[1]) as second:
        want = PlacementRequest("default", "base", thread="t")

        async def is_lost() -> bool:
            try:
                return isinstance(await second.directory.place(want), LostPlace)
            except Unavailable:  # it may still come back
                return False

        await eventually(is_lost, RECORDED_WITHIN_S)
        places: list[Place] = []

        async def is_placed() -> bool:
            try:
                places.append(
                    await second.directory.place(
                        PlacementRequest("default", "base", thread="t", takes_over=session.id)
                    )
                )
            except Unavailable:  # the second one's own report is late
                return False
            return True

        await eventually(is_placed, RECORDED_WITHIN_S)
        (place,) = places
        assert place.worker.id == second.name
        opened = await second.worker.create_session(
            CreateSession(thread="t", recreate_lost=True),
            Assignment(reservation=place.reservation, lost=place.lost),
        )
        anew = opened.session
        assert (anew.id, anew.generation, anew.metadata) == (session.id, 2, {"m": "1"})
        assert anew.created_at == session.created_at
        assert anew.loss is not None
        assert "its worker is gone" in anew.loss.reason
        result = await second.worker.execute(anew.id, ExecRequest('ls /workspace; echo "[$A]"'))
        assert result.stdout == b"[]\n"
        async with in_fleet(redis, cell, folders[0]) as back:
            await back.membership.confirm()
            assert back.worker.session_ids == set()

            async def container_is_gone() -> bool:
                return f"sandlot-{session.sandbox_id}" not in await containers(back.name)

            await eventually(container_is_gone, REMOVED_WITHIN_S)

        async def is_the_second_s() -> bool:
            found = await second.directory.find(session.id)
            return (found.worker.id, found.worker.state) == (second.name, WorkerState.ALIVE)

        await eventually(is_the_second_s)
        await forget(second, anew)


async def lose(at: Placed, session: Session) -> None:
    await asyncio.to_thread(docker, "rm", "-f", f"sandlot-{session.sandbox_id}")

    async def is_lost() -> bool:
        found = await at.directory.find(session.id)
        return found.session.state is SessionState.LOST

    await eventually(is_lost, REMOVED_WITHIN_S)


async def test_what_is_made_anew_is_on_record_or_was_not_made(
    redis: RedisServer, cell: str, folders: tuple[Path, Path]
) -> None:
    """A generation that nobody else has heard of would stand before one that another worker makes."""
    async with in_fleet(redis, cell, folders[0]) as at:
        session = await create(at, CreateSession())
        await lose(at, session)
        at.directory.failing.add("record")
        with pytest.raises(Unavailable, match="could not be recorded") as refused:
            await at.worker.recreate_session(session.id)
        assert not refused.value.may_have_executed
        kept = await at.worker.get_session(session.id)
        assert (kept.state, kept.generation) == (SessionState.LOST, 1)
        at.directory.mend()
        anew = await at.worker.recreate_session(session.id)
        found = await at.directory.find(session.id)
        assert (anew.generation, found.session.generation, found.session.state) == (2, 2, SessionState.ACTIVE)
        assert (await at.worker.execute(session.id, ExecRequest("true"))).exit_code == 0
        await forget(at, anew)


async def test_what_another_worker_has_by_now_is_not_made_anew(
    redis: RedisServer, cell: str, folders: tuple[Path, Path]
) -> None:
    async with in_fleet(redis, cell, folders[0]) as at:
        session = await create(at, CreateSession())
        await lose(at, session)
        other = await at.directory.join(WorkerCard("other", "http://other:8000", "1.0"), "other")
        theirs = replace(session, generation=3)
        assert await at.directory.record(other, [SessionEntry(theirs)]) == frozenset()
        with pytest.raises(Unavailable, match="another worker"):
            await asyncio.wait_for(at.worker.recreate_session(session.id), 60)
        await eventually(lambda: at.worker.session_ids == set())
        assert (await at.directory.find(session.id)).worker.id == "other"

        # In the background. If the engine refuses, because it has just removed the container, the sweep does it.
        async def files_are_gone() -> bool:
            listed = await asyncio.to_thread(docker, "volume", "ls", "--format", "{{.Name}}")
            return f"sandlot-{session.sandbox_id}" not in str(listed).split()

        await eventually(files_are_gone, REMOVED_WITHIN_S)

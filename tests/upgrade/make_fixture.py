"""Writes what a fleet of version 0.2 leaves behind: a worker's database, and everything that Redis holds.

Run it with the source of that version, from the root of this repository:

    git worktree add /tmp/sandlot-0.2 9bc3997
    PYTHONPATH=/tmp/sandlot-0.2/src:/tmp/sandlot-0.2 python -P tests/upgrade/make_fixture.py tests/upgrade/from_0_2

It needs redis-server, and no engine: the sandboxes are those of that version's own unit tests. Two workers have
sessions in every state. Then both are gone, as after ``kill -9``: nothing is closed, and no lease is given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from redis import Redis

from sandlot.domain.capacity.limits import LimitChange
from sandlot.domain.errors import Unavailable
from sandlot.domain.execution import ExecRequest
from sandlot.domain.session import NEVER, Assignment, CreateSession, Session
from sandlot.fleet.directory.contract import Place, PlacementRequest, Timings, WorkerCard
from sandlot.fleet.directory.redis_directory import RedisDirectory
from sandlot.fleet.membership.membership import Membership
from sandlot.testing.directory_suite.redis_server import redis_server
from sandlot.testing.eventually import eventually
from tests.unit.worker.conftest import Scene
from tests.unit.worker.scripted import Engine

WITHIN_S = 30.0
TIMINGS = Timings(lease_s=2.0, lost_after_s=600.0)
FOREVER: dict[str, Any] = {"idle_timeout_s": NEVER, "lifetime_s": NEVER}


class OldWorker:
    """A worker with its membership, as ``sandlot worker`` builds it."""

    def __init__(self, name: str, folder: Path, url: str) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir()
        self.engine = Engine()
        self.directory = RedisDirectory.open(url, timings=TIMINGS)
        card = WorkerCard(name, f"http://{name}.example:8000", "0.2.0")
        self.membership = Membership(self.directory, card, self.folder)
        scene = Scene(self.engine, self.folder)
        self.worker = scene.worker(registrar=self.membership, allow_never=True)

    async def open(self) -> None:
        self.membership.lock()
        await self.worker.open()
        await self.membership.start(self.worker)
        await eventually(lambda: self.membership.joined, WITHIN_S)

    async def create(self, **options: Any) -> Session:
        """As a coordinator does, whose directory has chosen this worker."""
        request = CreateSession(**options)
        place = await self._placed(request)
        assignment = Assignment(reservation=place.reservation)
        return (await self.worker.create_session(request, assignment)).session

    async def _placed(self, request: CreateSession) -> Place:
        others = ("w1", "w2")
        avoid = tuple(name for name in others if name != self.name)
        want = PlacementRequest(
            "default", "base", thread=request.thread, idempotency_key=request.idempotency_key, avoid=avoid
        )
        for _ in range(300):
            try:
                place = await self.directory.place(want)
            except Unavailable:  # the directory settles for one lease after its birth
                await asyncio.sleep(0.1)
                continue
            assert isinstance(place, Place)
            assert place.worker.id == self.name
            return place
        raise AssertionError("no place")

    async def lose(self, session: Session) -> None:
        assert session.sandbox_id is not None
        self.engine.sandboxes[session.sandbox_id].die("its container was killed")

        async def is_lost() -> bool:
            return (await self.worker.get_session(session.id)).state.value == "lost"

        await eventually(is_lost, WITHIN_S)


async def live(first: OldWorker, second: OldWorker) -> dict[str, str]:
    """What the fleet's users do. Returns the sessions by name."""
    await first.open()
    await second.open()
    made: dict[str, Session] = {}
    made["plain"] = await first.create(**FOREVER)
    made["thread"] = await first.create(
        thread="conversation-1",
        env={"TOKEN": "of the first", "EMPTY": ""},
        metadata={"user": "ada", "title": "a b"},
        idempotency_key="once",
        **FOREVER,
    )
    await first.worker.execute(made["thread"].id, ExecRequest(command="echo before", exec_id="an-exec"))
    made["limits"] = await first.create(
        limits=LimitChange(memory_bytes=1024**3, cpus=2.0, pids=100), **FOREVER
    )
    made["lost"] = await first.create(thread="conversation-2", env={"TOKEN": "of the lost"}, **FOREVER)
    await first.lose(made["lost"])
    made["recreated"] = await first.create(thread="conversation-3", **FOREVER)
    await first.lose(made["recreated"])
    await first.worker.recreate_session(made["recreated"].id)
    made["ended"] = await first.create(thread="conversation-4", env={"TOKEN": "of the ended"}, **FOREVER)
    await first.worker.delete_session(made["ended"].id)
    made["successor"] = await first.create(thread="conversation-4", **FOREVER)
    # As SQLite does from time to time. What follows is in the log alone.
    with contextlib.closing(sqlite3.connect(first.folder / "worker.db")) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    made["expiring"] = await first.create(thread="conversation-5", idle_timeout_s=60, lifetime_s=60)
    made["elsewhere"] = await second.create(thread="conversation-6", metadata={"user": "eve"}, **FOREVER)
    return {name: session.id for name, session in made.items()}


def text(raw: bytes) -> str:
    shown = raw.decode("ascii", "replace")
    return (
        shown if shown.isprintable() and "\ufffd" not in shown and shown[:4] != "hex:" else "hex:" + raw.hex()
    )


def dumped(redis: Redis) -> dict[str, Any]:
    """Every key, with its type and value. Bytes that are no text are in hex."""
    found: dict[str, Any] = {}
    for key in sorted(redis.scan_iter(count=1000)):
        match kind := redis.type(key).decode():
            case "hash":
                value: Any = {text(name): text(field) for name, field in sorted(redis.hgetall(key).items())}
            case "zset":
                value = {text(name): score for name, score in redis.zrange(key, 0, -1, withscores=True)}
            case "set":
                value = sorted(map(text, redis.smembers(key)))
            case "string":
                value = text(redis.get(key))
            case _:
                raise AssertionError(f"{key!r} is a {kind}")
        found[text(key)] = {"type": kind, "value": value}
    return found


async def main(target: Path) -> None:
    assert importlib.util.find_spec("sandlot.domain.callers") is None, "this is not the source of version 0.2"
    folder = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    with redis_server() as server:
        first, second = (OldWorker(name, folder, server.url) for name in ("w1", "w2"))
        names = await live(first, second)
        known = {
            name: msgspec.to_builtins(await old.worker.get_session(names[name]))
            for old, mine in ((first, names.keys() - {"ended", "elsewhere"}), (second, {"elsewhere"}))
            for name in sorted(mine)
        }
        with Redis.from_url(server.url) as redis:
            redis_holds = dumped(redis)
        target.mkdir(exist_ok=True)
        for name in ("worker.db", "worker.db-wal", "member.json"):
            shutil.copy(first.folder / name, target / name)
        for name, content in (("redis.json", redis_holds), ("sessions.json", {"ids": names, "known": known})):
            (target / name).write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
        for old in (first, second):
            await old.worker.close()
            await old.membership.close()
            await old.directory.close()
    shutil.rmtree(folder)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))

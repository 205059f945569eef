"""The users that deploy/redis/users makes, in a real Redis: all that each member needs, and nothing else."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from sandlot.api.edge.key_ring import KeyRing
from sandlot.domain.callers.limits import Allowance, CallerLimits
from sandlot.domain.callers.principal import OWNER
from sandlot.domain.callers.rates import Rate
from sandlot.domain.errors import Busy, Unavailable
from sandlot.domain.webhooks.webhook import new_webhook
from sandlot.fleet.directory.contract import HeldPage, ReportReply, SessionEntry, WorkerCard, WorkerReport
from sandlot.fleet.directory.lease import Lease
from sandlot.fleet.directory.redis_directory import RedisDirectory
from sandlot.fleet.keys.redis_keys import RedisKeys
from sandlot.fleet.rates.redis_rates import RedisRates
from sandlot.fleet.redis.connections import connect
from sandlot.fleet.slots.redis_slots import RedisSlots
from sandlot.fleet.webhooks.redis_webhooks import RedisWebhooks
from sandlot.testing.directory_suite import DirectoryHarness, DirectorySuite
from sandlot.testing.directory_suite.harness import TIMINGS, Fleet
from sandlot.testing.directory_suite.redis_server import RedisServer, redis_server
from sandlot.testing.key_suite import NOW, KeySuite, a_key, added
from tests.fleet.harnesses import DEADLINE_S, in_redis, opened

USERS = Path(__file__).parents[2] / "deploy/redis/users"
# The suite's workers, each with a user of its own, and one user for those of any other name.
WORKERS = ("w1", "w2", "w3", "w4")
CELL = "sandlot:{default}:"


class Guarded:
    """A Redis with users. ``url`` is that of a user."""

    def __init__(self, server: RedisServer, secrets: Path) -> None:
        self.server = server
        self.secrets = secrets

    def url(self, user: str) -> str:
        password = (self.secrets / f"redis-{user}").read_text().strip()
        return f"redis://{user}:{password}@127.0.0.1:{self.server.port}/0"

    async def denials(self) -> list[Any]:
        async with Redis.from_url(self.url("admin")) as admin:
            found: list[Any] = await admin.execute_command("ACL", "LOG")
            await admin.execute_command("ACL", "LOG", "RESET")
        return found


def made(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([USERS, folder, *arguments], capture_output=True, text=True, check=False)


def guarded(folder: Path, *arguments: str) -> Iterator[Guarded]:
    ran = made(folder, *arguments)
    assert ran.returncode == 0, ran.stderr
    with redis_server("--aclfile", str(folder / "redis-users")) as server:
        yield Guarded(server, folder)


@pytest.fixture(scope="module")
def any_cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    yield from guarded(tmp_path_factory.mktemp("any"), "--cell", "*", *WORKERS, "worker=*")


@pytest.fixture(scope="module")
def one_cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    yield from guarded(tmp_path_factory.mktemp("one"), "w1", "w2")


# --- what members need ----------------------------------------------------------------------------


class ByUser(RedisDirectory):
    """A directory in which each worker does with its own user what a worker does, and a coordinator the rest."""

    def __init__(self, redis: Guarded, cell: str) -> None:
        self._guarded, self._cell = redis, cell
        url = redis.url("coordinator")
        super().__init__(connect(url, DEADLINE_S), cell=cell, timings=TIMINGS, deadline_s=DEADLINE_S)
        self._workers: dict[str, RedisDirectory] = {}

    def of(self, worker: str) -> RedisDirectory:
        if worker not in self._workers:
            url = self._guarded.url(worker if worker in WORKERS else "worker")
            self._workers[worker] = opened(url, self._cell)
        return self._workers[worker]

    async def join(self, card: WorkerCard, token: str, *, last_epoch: int = 0) -> Lease:
        return await self.of(card.id).join(card, token, last_epoch=last_epoch)

    async def report(self, lease: Lease, report: WorkerReport) -> ReportReply:
        return await self.of(lease.worker_id).report(lease, report)

    async def leave(self, lease: Lease) -> None:
        await self.of(lease.worker_id).leave(lease)

    async def record(self, lease: Lease, entries: Sequence[SessionEntry]) -> frozenset[str]:
        return await self.of(lease.worker_id).record(lease, entries)

    async def forget(self, lease: Lease, session_ids: Sequence[str]) -> None:
        await self.of(lease.worker_id).forget(lease, session_ids)

    async def held(self, worker_id: str, *, after: str | None = None) -> HeldPage:
        return await self.of(worker_id).held(worker_id, after=after)

    async def close(self) -> None:
        for directory in self._workers.values():
            await directory.close()
        await super().close()


class TestDirectory(DirectorySuite):
    @pytest_asyncio.fixture
    async def directory_harness(self, any_cell: Guarded) -> AsyncIterator[DirectoryHarness]:
        await any_cell.denials()
        async with in_redis(any_cell.url("admin"), lambda _, cell: ByUser(any_cell, cell)) as harness:
            yield harness
        assert await any_cell.denials() == []

    async def test_a_worker_finds_who_has_a_session(self, fleet: Fleet) -> None:
        await fleet.offer("w1", warm=1)
        await fleet.offer("w2")
        await fleet.settle()
        session, place = await fleet.create()
        assert place.worker.id == "w1"
        assert isinstance(fleet.directory, ByUser)
        found = await fleet.directory.of("w2").find(session.id)
        assert found is not None
        assert found.worker.id == "w1"


@pytest.fixture
def cell() -> str:
    return f"keys-{token_hex(4)}"


@pytest_asyncio.fixture
async def store(any_cell: Guarded, cell: str) -> AsyncIterator[RedisKeys]:
    directory = opened(any_cell.url("coordinator"), cell)
    yield RedisKeys(directory.calls)
    await directory.close()
    assert await any_cell.denials() == []


@pytest_asyncio.fixture
async def other(any_cell: Guarded, cell: str) -> AsyncIterator[RedisKeys]:
    directory = opened(any_cell.url("coordinator"), cell)
    yield RedisKeys(directory.calls)
    await directory.close()


class TestKeys(KeySuite):
    """A coordinator manages keys."""


async def test_a_worker_learns_of_keys_limits_and_policies(
    store: RedisKeys, any_cell: Guarded, cell: str
) -> None:
    directory = opened(any_cell.url("w1"), cell)
    ring = KeyRing(RedisKeys(directory.calls), read_only=True, clock=lambda: NOW)
    await ring.refresh()  # nobody has ever had a key
    [key] = await added(store)
    await store.set_limits("acme", CallerLimits(sessions=3))
    await store.set_policy("acme", "validation")
    await ring.refresh()
    assert not ring.has_ended(key.id)
    assert ring.limits_of("acme").sessions == 3
    assert ring.policy_of("acme") == "validation"
    await store.end(key.id, NOW, revoked=True)
    await ring.refresh()
    assert ring.has_ended(key.id)
    await ring._forget_ended()
    await directory.close()


@pytest.mark.parametrize("user", ["w1", "worker", "coordinator"])
async def test_members_count_calls_together(any_cell: Guarded, user: str) -> None:
    directory = opened(any_cell.url(user), "rates")
    rates = RedisRates(directory.calls)
    [taken] = await rates.take([Rate(f"t:{user}", 1.0)])
    assert taken.wait_s == 0
    [taken] = await rates.take([Rate(f"t:{user}", 1.0)])
    assert taken.wait_s > 0
    await directory.close()
    assert await any_cell.denials() == []


@pytest.mark.parametrize("user", ["w1", "worker"])
async def test_workers_count_commands_together(any_cell: Guarded, user: str) -> None:
    directory = opened(any_cell.url(user), "slots")
    slots = RedisSlots(directory.calls, user)
    limit = [Allowance(f"t:{user}", CallerLimits(execs=1))]
    slots.open()
    assert await slots.take("s/a", limit)
    slots.release("s/a")
    assert await slots.take("s/b", limit)
    with pytest.raises(Busy):
        await slots.take("s/c", limit)
    await slots.close()
    assert not slots._alone_until
    await directory.close()
    assert await any_cell.denials() == []


# --- what they may not do -------------------------------------------------------------------------

FORBIDDEN = [
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("CONFIG", "GET", "*"),
    ("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"),
    ("ACL", "LIST"),
    ("ACL", "SETUSER", "w1", "+@all"),
    ("SHUTDOWN", "NOSAVE"),
    ("REPLICAOF", "10.0.0.66", "6379"),
    ("MONITOR",),
    ("KEYS", "*"),
    ("SCAN", "0"),
    ("SCRIPT", "FLUSH"),
    ("FUNCTION", "FLUSH"),
    ("MODULE", "LIST"),
    ("CLIENT", "LIST"),
    ("SAVE",),
    ("MIGRATE", "10.0.0.66", "6379", "", "0", "1000"),
    ("SUBSCRIBE", "a"),
    ("SET", "of-another-program", "1"),
    ("HGETALL", "sandlot:{another}:keys"),
    ("HSET", "sandlot:{another}:s", "a", "1"),
]
NOT_FOR_WORKERS = [
    ("HSET", CELL + "keys", "aaaaaaaaaaaa", "{}"),
    ("DEL", CELL + "keys"),
    ("HSET", CELL + "keys:limits", "acme", "{}"),
    ("ZADD", CELL + "keys:changed", "1", "aaaaaaaaaaaa"),
    ("HSET", CELL + "w:w2", "url", "http://10.0.0.66"),
    ("DEL", CELL + "w:w2"),
]


async def refused(client: Redis, words: tuple[str, ...]) -> bool:
    """Both as a command and inside a script."""
    with pytest.raises(NoPermissionError):
        await client.execute_command(*words)
    with pytest.raises(RedisError) as told:
        await client.eval("return redis.call(unpack(ARGV))", 0, *words)
    return "user executing the script" in str(told.value) or "not allowed from script" in str(told.value)


@pytest.mark.parametrize("words", [*FORBIDDEN, *NOT_FOR_WORKERS], ids=" ".join)
async def test_what_a_worker_may_not_do(one_cell: Guarded, words: tuple[str, ...]) -> None:
    async with Redis.from_url(one_cell.url("w1"), protocol=2) as client:
        assert await refused(client, words)


@pytest.mark.parametrize("words", FORBIDDEN, ids=" ".join)
async def test_what_a_coordinator_may_not_do(one_cell: Guarded, words: tuple[str, ...]) -> None:
    async with Redis.from_url(one_cell.url("coordinator"), protocol=2) as client:
        assert await refused(client, words)


async def test_a_worker_follows_webhooks_and_makes_none(one_cell: Guarded) -> None:
    coordinator, worker = (opened(one_cell.url(user), "default") for user in ("coordinator", "w1"))
    kept, theirs = RedisWebhooks(coordinator.calls), RedisWebhooks(worker.calls)
    empty = await theirs.current()
    assert empty is not None
    webhook = new_webhook(OWNER, NOW, url="https://example.com/x", events=["session.ended"])
    await kept.add(webhook)
    found = await theirs.current(empty.mark)
    assert found is not None
    assert found.webhooks == [webhook]
    other = new_webhook(OWNER, NOW, url="https://example.com/y", events=["session.ended"])
    for change in (theirs.add(other), theirs.remove(webhook)):
        with pytest.raises(Unavailable, match="does not permit this to the member's user"):
            await change
    await kept.remove(webhook)
    await one_cell.denials()
    await worker.close()
    await coordinator.close()


async def test_a_worker_makes_no_keys_and_says_why(one_cell: Guarded) -> None:
    coordinator, worker = (opened(one_cell.url(user), "default") for user in ("coordinator", "w1"))
    [key] = await added(RedisKeys(coordinator.calls))
    keys = RedisKeys(worker.calls)
    for change in (
        keys.add(a_key().key),
        keys.end(key.id, NOW, revoked=True),
        keys.set_limits("acme", CallerLimits(sessions=9)),
        keys.set_policy("acme", None),
        keys.record_use({key.id: NOW}),
    ):
        with pytest.raises(
            Unavailable, match=r"does not permit this to the member's user.*deploy/redis/users"
        ):
            await change
    assert (await RedisKeys(coordinator.calls).get(key.id)) == key
    for directory in (coordinator, worker):
        await directory.close()


async def test_a_worker_does_not_join_under_the_name_of_another(one_cell: Guarded) -> None:
    worker = opened(one_cell.url("w1"), "default")
    with pytest.raises(Unavailable, match="does not permit"):
        await worker.join(WorkerCard("w2", "http://10.0.0.66", "1"), "token")
    assert (await worker.join(WorkerCard("w1", "http://w1", "1"), "token")).epoch == 1
    await worker.close()


async def test_without_a_user_there_is_nothing(one_cell: Guarded) -> None:
    url = f"redis://127.0.0.1:{one_cell.server.port}/0"
    for wrong in (url, url.replace("//", "//:word@"), url.replace("//", "//w1:word@")):
        async with Redis.from_url(wrong, protocol=2) as client:
            with pytest.raises(AuthenticationError):
                await client.ping()


# --- the script itself ----------------------------------------------------------------------------


def test_run_again_it_keeps_passwords_and_replaces_users(tmp_path: Path) -> None:
    assert made(tmp_path, "w1").returncode == 0
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert made(tmp_path, "w2").returncode == 0
    after = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert before.keys() | {"redis-w2"} == after.keys()
    assert [name for name in before if before[name] != after[name]] == ["redis-users"]
    listed = [line.split()[1] for line in after["redis-users"].splitlines()]
    assert listed == ["default", "admin", "coordinator", "w2"]
    for name, text in after.items():
        assert (tmp_path / name).stat().st_mode & 0o077 == 0
        assert name == "redis-users" or text.strip() not in after["redis-users"]


@pytest.mark.parametrize(
    "arguments",
    [[], ["--cell"], ["--cell", "a b", "w1"], ["--sell", "a", "w1"], ["a b"], ["w1=a~b"], ["w1="], ["admin"]],
    ids=" ".join,
)
def test_what_it_does_not_understand(tmp_path: Path, arguments: list[str]) -> None:
    ran = made(tmp_path, *arguments)
    assert ran.returncode == 2
    assert ran.stderr.startswith("users: ")
    assert not (tmp_path / "redis-users").exists()

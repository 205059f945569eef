"""The directory when Redis fails: frozen, killed, emptied, full, read-only, its clock wrong."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
import pytest_asyncio
import uvloop
from redis.asyncio import Redis

from sandlot.domain.errors import InvalidRequest, SandlotError, Unavailable, Unsupported
from sandlot.fleet.directory.contract import (
    Fenced,
    Place,
    PlacementRequest,
    Room,
    SessionEntry,
    Timings,
    WorkerCard,
    WorkerReport,
    WorkerState,
)
from sandlot.fleet.directory.redis_directory import RedisDirectory
from sandlot.testing.directory_suite.harness import a_session
from sandlot.testing.directory_suite.redis_server import RedisServer, free_port, redis_server
from sandlot.testing.eventually import eventually

CARD = WorkerCard("w1", "http://w1:8000", "1.0")
REPORT = WorkerReport(room={"base": Room(5, 50)})
# A refusal comes at once; how long it may take at most is shown by the frozen one.
DEADLINE_S = 10.0
# The tests below take what they need in seconds of real time.
TIMINGS = Timings(lease_s=2.0, lost_after_s=4.0)
HASTY_S = 2.0


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server("--appendonly", "yes", "--appendfsync", "everysec") as server:
        yield server


@pytest_asyncio.fixture
async def directory(server: RedisServer) -> AsyncIterator[RedisDirectory]:
    directory = RedisDirectory.open(server.url, timings=TIMINGS, deadline_s=DEADLINE_S)
    yield directory
    await directory.close()


async def unavailable(directory: RedisDirectory, reason: str) -> None:
    """Every call of a coordinator says so, and says when to come again."""
    for call in (
        directory.place(PlacementRequest("acme", "base")),
        directory.find(a_session().id),
        directory.page("acme"),
        directory.workers(),
        directory.status(),
    ):
        with pytest.raises(Unavailable) as caught:
            await call
        assert caught.value.details["reason"] == reason, caught.value
        assert caught.value.retry_after_s == 1.0


@pytest_asyncio.fixture
async def hasty(server: RedisServer) -> AsyncIterator[RedisDirectory]:
    """Its workers live longer than anybody waits for an answer."""
    directory = RedisDirectory.open(
        server.url, timings=Timings(lease_s=60.0, lost_after_s=60.0), deadline_s=HASTY_S
    )
    yield directory
    await directory.close()


async def test_frozen(server: RedisServer, hasty: RedisDirectory) -> None:
    """Every call ends by its deadline, also many at once, and the event loop goes on meanwhile."""
    directory = hasty
    lease = await directory.join(CARD, "p")
    await directory.report(lease, REPORT)
    clock = asyncio.get_running_loop().time
    longest_pause = 0.0

    async def beat() -> None:
        nonlocal longest_pause
        while True:
            before = clock()
            await asyncio.sleep(0.01)
            longest_pause = max(longest_pause, clock() - before)

    heart = asyncio.create_task(beat())
    server.signal(signal.SIGSTOP)
    try:
        began = clock()
        # More than there are connections.
        answers = await asyncio.gather(
            *(directory.place(PlacementRequest("acme", "base")) for _ in range(60)), return_exceptions=True
        )
        took = clock() - began
    finally:
        server.signal(signal.SIGCONT)
        heart.cancel()
    assert all(isinstance(answer, Unavailable) for answer in answers), answers
    assert HASTY_S <= took < 4 * HASTY_S
    assert longest_pause < HASTY_S
    # What was sent and not heard may have been done; its places come back by themselves, and the next call works.
    assert isinstance(await directory.place(PlacementRequest("acme", "base")), Place)


async def test_a_cancelled_call_mixes_up_nothing(server: RedisServer, directory: RedisDirectory) -> None:
    """Whoever comes next on its connection gets the answer to the own question."""
    lease = await directory.join(CARD, "p")
    sessions = [a_session() for _ in range(40)]
    await directory.record(lease, [SessionEntry(session) for session in sessions])
    for _ in range(5):
        server.signal(signal.SIGSTOP)
        calls = [asyncio.create_task(directory.find(session.id)) for session in sessions]
        await asyncio.sleep(0.02)
        for call in calls:
            call.cancel()
        server.signal(signal.SIGCONT)
        await asyncio.gather(*calls, return_exceptions=True)
        assert any(call.cancelled() for call in calls)
        for session in sessions[:20]:
            found = await directory.find(session.id)
            assert found is not None
            assert found.session.id == session.id


async def test_an_outage_is_not_the_death_of_the_workers(
    server: RedisServer, directory: RedisDirectory
) -> None:
    """Frozen for longer than a worker may be away: it is late then, and not gone, and its session is not lost."""
    lease = await directory.join(CARD, "p")
    await directory.report(lease, REPORT)
    session = a_session(thread="t")
    await directory.record(lease, [SessionEntry(session)])
    server.signal(signal.SIGSTOP)
    await asyncio.sleep(TIMINGS.lease_s + TIMINGS.lost_after_s + 0.5)
    server.signal(signal.SIGCONT)
    found = await directory.find(session.id)
    assert found is not None
    assert found.worker.state is WorkerState.LATE
    with pytest.raises(Unavailable, match="is not responding"):
        await directory.place(PlacementRequest("acme", "base", thread="t"))
    assert (await directory.report(lease, REPORT)).intact
    place = await directory.place(PlacementRequest("acme", "base", thread="t"))
    assert isinstance(place, Place)
    assert place.known


async def test_leases_end_in_real_time(directory: RedisDirectory) -> None:
    """As long as somebody speaks to the directory."""
    clock = asyncio.get_running_loop().time
    began = clock()
    await directory.join(CARD, "p")
    other = await directory.join(WorkerCard("w2", "http://w2:8000", "1.0"), "q")
    seen: dict[WorkerState, float] = {}
    while WorkerState.GONE not in seen:
        await directory.report(other, REPORT)
        first, second = await directory.workers()
        seen.setdefault(first.ref.state, clock() - began)
        assert second.ref.state is WorkerState.ALIVE
        assert clock() - began < 60
        await asyncio.sleep(0.1)
    assert seen[WorkerState.LATE] >= TIMINGS.lease_s - 0.1
    assert seen[WorkerState.GONE] >= TIMINGS.lease_s + TIMINGS.lost_after_s - 0.1


async def test_killed_and_restarted(server: RedisServer, directory: RedisDirectory) -> None:
    """What Redis wrote down is there; what it lost of a worker's records, that worker is told."""
    plain = Redis.from_url(server.url)
    await plain.config_set("appendfsync", "always")
    lease = await directory.join(CARD, "p")
    kept, lost = a_session(thread="kept"), a_session(thread="lost")
    await directory.record(lease, [SessionEntry(kept)])
    # From here on nothing reaches the file, as in the last moment before a crash.
    await plain.config_set("appendonly", "no")
    await directory.record(lease, [SessionEntry(lost)])
    await plain.aclose()
    server.kill()
    await unavailable(directory, "directory_connection")
    server.start()
    beat = await directory.report(lease, REPORT)
    assert not beat.intact
    assert beat.generation == lease.generation
    assert await directory.find(kept.id) is not None
    assert await directory.record(lease, [SessionEntry(kept), SessionEntry(lost)]) == frozenset()
    assert (await directory.report(lease, REPORT)).intact
    assert await directory.find(lost.id) is not None


async def test_killed_and_restarted_intact(server: RedisServer, directory: RedisDirectory) -> None:
    plain = Redis.from_url(server.url)
    await plain.config_set("appendfsync", "always")  # a disk that is slow to sync holds writes back otherwise
    await plain.aclose()
    lease = await directory.join(CARD, "p")
    session = a_session()
    await directory.record(lease, [SessionEntry(session)])
    server.kill()
    server.start()
    assert (await directory.report(lease, REPORT)).intact
    assert await directory.find(session.id) is not None


async def test_emptied(server: RedisServer, directory: RedisDirectory) -> None:
    lease = await directory.join(CARD, "p")
    session = a_session(thread="t")
    await directory.record(lease, [SessionEntry(session)])
    plain = Redis.from_url(server.url)
    await plain.flushall()
    # Its scripts too: they are sent again.
    await plain.script_flush()
    await plain.aclose()
    with pytest.raises(Unavailable, match="being rebuilt"):
        await directory.find(session.id)
    with pytest.raises(Fenced):
        await directory.report(lease, REPORT)
    again = await directory.join(CARD, "p", last_epoch=lease.epoch)
    assert again.generation != lease.generation
    assert again.epoch > lease.epoch
    await directory.record(again, [SessionEntry(session)])
    assert (await directory.report(again, REPORT)).intact
    assert await directory.find(session.id) is not None


async def test_full(server: RedisServer, directory: RedisDirectory) -> None:
    """Creates are refused, and say why. Workers stay alive, what exists is found, and memory can be freed."""
    lease = await directory.join(CARD, "p")
    await directory.report(lease, REPORT)
    session = a_session()
    await directory.record(lease, [SessionEntry(session)])
    plain = Redis.from_url(server.url)
    await plain.config_set("maxmemory", "1mb")
    for _ in range(3):
        with pytest.raises(Unavailable, match="out of memory") as caught:
            await directory.place(PlacementRequest("acme", "base"))
        assert caught.value.details["reason"] == "directory_oom"
        await directory.report(lease, REPORT)
    assert (await directory.workers())[0].ref.state is WorkerState.ALIVE
    assert await directory.find(session.id) is not None
    await directory.forget(lease, [session.id])
    await plain.config_set("maxmemory", "0")
    assert isinstance(await directory.place(PlacementRequest("acme", "base")), Place)
    await plain.aclose()


async def test_a_redis_that_throws_keys_away(server: RedisServer, directory: RedisDirectory) -> None:
    """A directory that lost some of its keys would say of them that they never were. Workers do not join it."""
    plain = Redis.from_url(server.url)
    for policy, fits in (("allkeys-lru", False), ("allkeys-random", False), ("volatile-lru", True)):
        await plain.config_set("maxmemory-policy", policy)
        if fits:
            await directory.join(CARD, "p")
        else:
            with pytest.raises(Unsupported, match="noeviction"):
                await directory.join(CARD, "p")
    await plain.aclose()


async def test_a_replica_now(server: RedisServer, directory: RedisDirectory) -> None:
    """After a failover, before the client has found the new master."""
    lease = await directory.join(CARD, "p")
    await directory.report(lease, REPORT)
    plain = Redis.from_url(server.url)
    with redis_server("--repl-diskless-sync-delay", "0") as master:
        await plain.execute_command("REPLICAOF", "127.0.0.1", str(master.port))
        clock = asyncio.get_running_loop().time
        deadline = clock() + 20
        while (await plain.info("replication"))["master_link_status"] != "up":
            assert clock() < deadline
            await asyncio.sleep(0.05)
        await unavailable(directory, "directory_readonly")
        await plain.execute_command("REPLICAOF", "NO", "ONE")
    await plain.aclose()


async def test_another_primary_behind_the_same_address(server: RedisServer) -> None:
    """As behind a virtual address: the one that was is a replica now, and closes no connection."""
    with redis_server("--repl-diskless-sync-delay", "0") as master:
        ports = [server.port]
        passing: list[asyncio.Task[None] | None] = []

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            passing.append(asyncio.current_task())
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", ports[0])
            await asyncio.gather(_pass_on(reader, up_writer), _pass_on(up_reader, writer))

        door = await asyncio.start_server(forward, "127.0.0.1", 0)
        url = f"redis://127.0.0.1:{door.sockets[0].getsockname()[1]}/0"
        directory = RedisDirectory.open(url, timings=TIMINGS, deadline_s=DEADLINE_S)
        await asyncio.gather(*(directory.join(CARD, "p") for _ in range(3)))  # more than one connection
        plain = Redis.from_url(server.url)
        await plain.execute_command("REPLICAOF", "127.0.0.1", str(master.port))
        ports[0] = master.port
        with pytest.raises(Unavailable):
            await directory.join(CARD, "p")
        assert (await directory.join(CARD, "p")).worker_id == "w1"
        await plain.execute_command("REPLICAOF", "NO", "ONE")
        await plain.aclose()
        await directory.close()
        door.close()
        await asyncio.wait([task for task in passing if task is not None], timeout=30)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
    writer.close()


async def test_a_place_on_a_worker_that_is_gone_is_kept_for_nobody(server: RedisServer) -> None:
    """Not for the two minutes that a place is kept: the worker will not make it any more."""
    timings = Timings(lease_s=1.0, lost_after_s=1.0)
    directory = RedisDirectory.open(server.url, timings=timings, deadline_s=DEADLINE_S)
    places: list[Place] = []

    async def placed() -> bool:
        for lease in leases:
            await directory.report(lease, REPORT)
        try:
            place = await directory.place(PlacementRequest("acme", "base", thread="t"))
        except Unavailable:  # not settled yet, or late
            return False
        assert isinstance(place, Place)
        if place.known:  # w1 is not gone yet
            return False
        places.append(place)
        return True

    leases = [await directory.join(CARD, "p")]
    await eventually(placed, 30)
    leases = [await directory.join(replace(CARD, id="w2"), "p")]
    await eventually(placed, 30)
    assert [place.worker.id for place in places] == ["w1", "w2"]
    await directory.close()


async def test_not_there() -> None:
    directory = RedisDirectory.open("redis://127.0.0.1:1/0", deadline_s=DEADLINE_S)
    await unavailable(directory, "directory_connection")
    await directory.close()


async def test_wrong_password(server: RedisServer) -> None:
    plain = Redis.from_url(server.url)
    await plain.config_set("requirepass", "secret")
    directory = RedisDirectory.open(server.url.replace("//", "//:wrong@"), deadline_s=DEADLINE_S)
    await unavailable(directory, "directory_credentials")
    await directory.close()
    await plain.aclose()


async def test_a_broken_record_is_not_called_an_outage(redis: RedisServer) -> None:
    cell = f"case-{secrets.token_hex(4)}"
    directory = RedisDirectory.open(redis.url, cell=cell)
    plain = Redis.from_url(redis.url)
    await directory.status()
    await plain.set(f"sandlot:{{{cell}}}:s", "not a hash")
    with pytest.raises(SandlotError) as caught:
        await directory.find(a_session().id)
    assert caught.value.code == "internal"
    assert "WRONGTYPE" in caught.value.message
    await directory.close()
    await plain.aclose()


@pytest.mark.parametrize("hours", [-1, 1])
async def test_redis_clock_jumps(redis: RedisServer, hours: int) -> None:
    """As at a failover to a machine whose clock is wrong. Nobody dies of it, and nobody lives for ever."""
    cell = f"case-{secrets.token_hex(4)}"
    directory = RedisDirectory.open(redis.url, cell=cell)
    plain = Redis.from_url(redis.url)
    lease = await directory.join(CARD, "p")
    # The clock was here when Redis was last spoken to.
    await plain.hincrby(f"sandlot:{{{cell}}}:meta", "seen", -hours * 3600 * 1000)
    (status,) = await directory.workers()
    assert status.ref.state is (WorkerState.ALIVE if hours < 0 else WorkerState.LATE)
    assert abs(status.lease_left_s) <= directory.timings.lease_s
    await directory.report(lease, REPORT)
    (status,) = await directory.workers()
    assert 0 < status.lease_left_s <= directory.timings.lease_s
    await plain.hincrby(f"sandlot:{{{cell}}}:meta", "clock", 11_000)
    (status,) = await directory.workers()
    assert status.ref.state is WorkerState.LATE
    await directory.close()
    await plain.aclose()


async def test_on_a_cluster() -> None:
    """Whose scripts may only touch keys of one slot."""
    with redis_server("--cluster-enabled", "yes", "--cluster-port", str(free_port())) as server:
        plain = Redis.from_url(server.url)
        await plain.execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        clock = asyncio.get_running_loop().time
        deadline = clock() + 20
        directory = RedisDirectory.open(server.url)
        lease = None
        while lease is None:
            try:
                lease = await directory.join(CARD, "p")
            except Unavailable as error:
                assert error.details["reason"] == "directory_clusterdown"
                assert clock() < deadline
                await asyncio.sleep(0.05)
        await directory.report(lease, REPORT)
        session = a_session(tenant="{b}", thread="{c}")
        await directory.record(lease, [SessionEntry(session, idempotency_key="{d}")])
        place = await directory.place(PlacementRequest("{b}", "base", thread="{c}"))
        assert isinstance(place, Place)
        assert place.known
        place = await directory.place(PlacementRequest("{a}", "base"))
        assert isinstance(place, Place)
        assert place.reservation is not None
        assert await directory.give_back(place.reservation)
        assert await directory.find(session.id) is not None
        await directory.forget(lease, [session.id])
        assert len(await directory.workers()) == 1
        keys = [key async for key in plain.scan_iter()]
        assert keys
        assert all(key.startswith(b"sandlot:{default}:") for key in keys)
        await directory.close()
        await plain.aclose()


@pytest.mark.parametrize("cell", ["", "a}b", "A b"])
async def test_cells_that_cannot_be(cell: str) -> None:
    with pytest.raises(InvalidRequest):
        RedisDirectory(Redis(), cell=cell)


@pytest.mark.parametrize(
    ("scheme", "option", "sentinels"),
    [
        ("redis", "socket_timeout=abc", ()),
        ("redis", "frobnicate=1", ()),
        ("rediss", "ssl_cert_reqs=perhaps", ()),
        ("redis", "socket_timeout=abc", ("127.0.0.1:1",)),
    ],
)
async def test_options_that_cannot_be_are_told_without_the_url(
    scheme: str, option: str, sentinels: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidRequest, match="SANDLOT_REDIS_URL") as caught:
        RedisDirectory.open(f"{scheme}://:hunter2@h:6379/0?{option}", sentinels=sentinels)
    assert all(part not in caught.value.message for part in ("://", "hunter2", "h:6379", option))


def test_a_connection_that_was_reset_under_uvloop_is_made_anew(server: RedisServer) -> None:
    """It says so with an error that redis-py does not take for one of the connection."""

    async def scenario() -> None:
        peers: list[asyncio.StreamWriter] = []

        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", server.port)
            peers.append(writer)

            async def back() -> None:
                while data := await upstream_reader.read(65536):
                    writer.write(data)

            backward = asyncio.create_task(back())
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(65536):
                    upstream.write(data)
            upstream.close()
            await backward

        async def reset_all() -> None:
            while peers:
                peer = peers.pop()
                no_goodbye = struct.pack("ii", 1, 0)
                peer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_goodbye)
                peer.transport.abort()
            await asyncio.sleep(0.05)

        proxy = await asyncio.start_server(pass_on, "127.0.0.1", 0)
        port = proxy.sockets[0].getsockname()[1]
        directory = RedisDirectory.open(f"redis://127.0.0.1:{port}/0", timings=TIMINGS, deadline_s=DEADLINE_S)
        try:
            for _ in range(3):
                await directory.status()
                await reset_all()
        finally:
            await directory.close()
            proxy.close()

    uvloop.run(scenario())

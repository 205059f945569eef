"""Listeners inside that lead to the host: they outlive broken links and workers, and are bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from sandlot.domain.errors import Conflict, SandlotError
from sandlot.domain.execution import ExecRequest
from sandlot.providers.base import ByteStream, PortListener, Sandbox
from sandlot.testing.eventually import eventually
from sandlot.testing.provider_suite.harness import Cases, Harness, ok, require, run

# Connects, ends its side, and prints what it is told.
ASK = "import socket, sys; c = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); "
ASK += "c.shutdown(1); print(c.makefile().read())"

# Connects again and again, until the second worker answers.
ASK_ON = """
import errno, socket, sys
told = set()
while "second" not in told:
    try:
        with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as c:
            c.shutdown(1)
            told.add(c.makefile().read())
    except OSError as error:
        # A connection that was reset before its shutdown is "not connected".
        if error.errno not in (errno.ECONNRESET, errno.ENOTCONN):
            raise
        told.add("reset")
    if len(told) == 1 and told == {"first"}:
        print("first", flush=True)
print(*sorted(told - {"reset"}))
"""

# Sends what nobody reads, and only then reads.
DEAF_AT_FIRST = """
import socket, sys, time
c = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
c.sendall(bytes(300000))
open("sent", "w").close()
time.sleep(0.5)
got = 0
try:
    while data := c.recv(65536):
        got += len(data)
    print(got)
except ConnectionResetError:
    print("reset")
"""

FLOOD = """
import socket, sys
address = ("127.0.0.1", int(sys.argv[1]))
held = [socket.create_connection(address) for _ in range(300)]
refused = 0
for c in held:
    c.settimeout(0.01)
    try:
        c.recv(1)
    except TimeoutError:
        pass
    except ConnectionResetError:
        refused += 1
print(refused)
"""

TALK = """
import socket, sys, threading
c = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def talk():
    while True:
        c.sendall(bytes(65536))
threading.Thread(target=talk, daemon=True).start()
while c.recv(65536):
    pass
"""

Serve = Callable[[ByteStream], Awaitable[None]]


def telling(word: bytes) -> Serve:
    async def serve(stream: ByteStream) -> None:
        await stream.send(word)
        await stream.close()

    return serve


@asynccontextmanager
async def served(listener: PortListener, serve: Serve) -> AsyncIterator[None]:
    tasks: set[asyncio.Task[None]] = set()

    async def one(stream: ByteStream) -> None:
        try:
            await serve(stream)
        except SandlotError:
            pass  # its program, or its link, is gone
        finally:
            stream.abort()

    async def accept() -> None:
        async for stream in listener.connections():
            tasks.add(asyncio.create_task(one(stream)))

    accepting = asyncio.create_task(accept())
    try:
        yield
    finally:
        await listener.close()
        for task in (accepting, *tasks):
            task.cancel()
        await asyncio.gather(accepting, *tasks, return_exceptions=True)


@asynccontextmanager
async def talking(sandbox: Sandbox) -> AsyncIterator[Callable[[], int]]:
    """Keeps four connections busy both ways. Gives how many bytes have come out."""
    await require(sandbox, "python3")
    await sandbox.files.write("talk.py", TALK.encode())
    listener = await sandbox.listen("127.0.0.1:0")
    moved = 0

    async def talk(stream: ByteStream) -> None:
        async def listen() -> None:
            nonlocal moved
            while data := await stream.receive():
                moved += len(data)

        listening = asyncio.create_task(listen())
        try:
            while True:
                await stream.send(bytes(65536))
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async with served(listener, talk):
        for n in range(4):
            await sandbox.start(
                ExecRequest(argv=("python3", "talk.py", port_of(listener)), exec_id=f"talk{n}")
            )
        await eventually(lambda: moved > 10_000_000, 60, lambda: f"10 MB have come ({moved} bytes)")
        yield lambda: moved


async def ten_answer(sandbox: Sandbox) -> None:
    for n in range(10):
        assert await ok(sandbox, f"echo {n}") == f"{n}\n"


def port_of(listener: PortListener) -> str:
    return listener.address.rsplit(":", 1)[1]


async def exists(sandbox: Sandbox, name: str) -> bool:
    return (await run(sandbox, f"test -e {name}")).exit_code == 0


class ListenerCases(Cases):
    """Not one of these may use the shared ``sandbox``: a restarted worker has no link to it."""

    async def test_listener_survives_a_broken_link(self, fresh: Sandbox) -> None:
        """The user kills all that he may, and with it the process that serves the link."""
        await require(fresh, "python3")
        listener = await fresh.listen("127.0.0.1:0")
        async with served(listener, telling(b"hello")):
            for _ in range(3):
                assert await ok(fresh, f'python3 -c "{ASK}" {port_of(listener)}') == "hello\n"
                await run(fresh, "kill -9 -1")

    async def test_restarted_worker_takes_listeners_over(self, provider_harness: Harness) -> None:
        """Programs are never refused: between the workers, they wait."""
        sandbox = await provider_harness.create()
        await require(sandbox, "python3")
        listener = await sandbox.listen("127.0.0.1:0")
        await sandbox.files.write("ask.py", ASK_ON.encode())
        asking = ExecRequest(
            command=f"python3 ask.py {port_of(listener)} >told", exec_id="asking", timeout_s=120
        )
        async with served(listener, telling(b"first")):
            await sandbox.start(asking)

            async def told() -> bool:
                return (await run(sandbox, "grep -q first told")).exit_code == 0

            await eventually(told, 30, "the program was told something")
            provider_harness.provider = await provider_harness.reopen()
            with pytest.raises(SandlotError):
                await sandbox.health()
            adopted = await provider_harness.provider.adopt(sandbox.id)
            again = await adopted.listen(listener.address)
            assert again.address == listener.address
            async with served(again, telling(b"second")):
                result = await asyncio.wait_for((await adopted.attach("asking")).result(), 60)
                assert result.exit_code == 0, result.stderr.decode()
                last = (await adopted.files.read_bytes("told")).decode().splitlines()[-1]
                assert last == "first second"

    async def test_second_listener_takes_the_address_over(self, fresh: Sandbox) -> None:
        await require(fresh, "python3")
        former = await fresh.listen("127.0.0.1:0")
        async with served(await fresh.listen(former.address), telling(b"the second")):
            with pytest.raises(Conflict):
                await asyncio.wait_for(anext(former.connections()), 20)
            assert await ok(fresh, f'python3 -c "{ASK}" {port_of(former)}') == "the second\n"
        result = await run(fresh, f'python3 -c "{ASK}" {port_of(former)}')
        assert b"ConnectionRefusedError" in result.stderr

    async def test_address_of_a_program_is_a_conflict(self, fresh: Sandbox) -> None:
        await require(fresh, "python3")
        server = "import socket, time; s = socket.create_server(('127.0.0.1', 7788)); "
        server += "open('bound', 'w').close(); time.sleep(600)"
        await fresh.start(ExecRequest(argv=("python3", "-c", server)))
        await eventually(lambda: exists(fresh, "bound"), 20, "the program listens")
        with pytest.raises(Conflict, match="in use"):
            await fresh.listen("127.0.0.1:7788")

    async def test_last_bytes_arrive(self, fresh: Sandbox) -> None:
        """However slow the program is, and whatever it has sent that nobody read."""
        await require(fresh, "python3")
        await fresh.files.write("deaf.py", DEAF_AT_FIRST.encode())
        listener = await fresh.listen("127.0.0.1:0")
        async with served(listener, telling(bytes(200_000))):
            assert await ok(fresh, f"python3 deaf.py {port_of(listener)}") == "200000\n"

    async def test_aborted_connection_is_seen_as_broken(self, fresh: Sandbox) -> None:
        await require(fresh, "python3")
        await fresh.files.write("deaf.py", DEAF_AT_FIRST.encode())
        listener = await fresh.listen("127.0.0.1:0")

        async def break_off(stream: ByteStream) -> None:
            await stream.send(b"some")
            await eventually(lambda: exists(fresh, "sent"), 20, "the program has sent")
            stream.abort()

        async with served(listener, break_off):
            assert await ok(fresh, f"python3 deaf.py {port_of(listener)}") == "reset\n"

    async def test_connections_that_nobody_takes_are_bounded(self, fresh: Sandbox) -> None:
        await require(fresh, "python3")
        await fresh.files.write("flood.py", FLOOD.encode())
        listener = await fresh.listen("127.0.0.1:0")
        refused = int(await ok(fresh, f"python3 flood.py {port_of(listener)}", timeout_s=60))
        assert 0 < refused < 300
        async with served(listener, telling(b"hello")):
            assert await ok(fresh, f'python3 -c "{ASK}" {port_of(listener)}') == "hello\n"

    async def test_traffic_does_not_stand_before_execs(self, fresh: Sandbox) -> None:
        async with talking(fresh) as moved:
            before = moved()
            await ten_answer(fresh)
            await eventually(lambda: moved() > before, 60, "the connections go on")

    async def test_stopped_traffic_does_not_stand_before_execs(self, fresh: Sandbox) -> None:
        """The user stops all that he may, and with it the process that serves the link."""
        async with talking(fresh) as moved:
            await run(fresh, "kill -STOP -1", timeout_s=5)
            await ten_answer(fresh)
            await run(fresh, "kill -CONT -1")
            before = moved()
            await eventually(lambda: moved() > before, 60, "the connections go on")

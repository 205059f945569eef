"""What can happen to the packets between members of a fleet: cut off, refused, late; and a network of one's own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import subprocess
import threading
from collections.abc import Iterator
from enum import Enum

import pytest

from sandlot.testing.directory_suite.redis_server import free_port
from tests.faults.rig import ServerProcess

PIECE_BYTES = 64 * 1024
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="cutting networks needs root: iptables and ip netns")


class Cut(Enum):
    """Packets are dropped without a word, or refused at once."""

    BLACK_HOLE = ("DROP",)
    REJECT = ("REJECT", "--reject-with", "tcp-reset")


def own_group() -> int | None:
    """An id that no group of this machine has; the members of a fleet are told apart by it."""
    return 100_000_000 + secrets.randbelow(1_000_000_000) if os.geteuid() == 0 else None


@contextlib.contextmanager
def cut_off(member: ServerProcess, *ports: int, how: Cut = Cut.BLACK_HOLE) -> Iterator[None]:
    """What this member sends to these ports of this machine does not arrive; nobody else notices."""
    assert member.group is not None
    rules = [
        [
            *("OUTPUT", "-o", "lo", "-p", "tcp", "--dport", str(port)),
            *("-m", "owner", "--gid-owner", str(member.group), "-j", *how.value),
        ]
        for port in ports
    ]
    try:
        for rule in rules:
            _run("iptables", "-w", "-A", *rule)
        yield
    finally:
        for rule in rules:
            _run("iptables", "-w", "-D", *rule, check=False)


class Namespace:
    """A network with one cable to this machine and no way out of it. ``down`` pulls the cable."""

    def __init__(self) -> None:
        name = secrets.token_hex(4)
        self.name = f"sandlot-test-{name}"
        self._cable = f"sl{name}"
        subnet = f"10.{200 + secrets.randbelow(50)}.{secrets.randbelow(256)}"
        self.outside = f"{subnet}.1"
        self.inside = f"{subnet}.2"

    def open(self) -> None:
        _run("ip", "netns", "add", self.name)
        _run("ip", "link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _run("ip", "address", "add", f"{self.outside}/30", "dev", self._cable)
        _run("ip", "link", "set", self._cable, "up")
        for command in (
            ("address", "add", f"{self.inside}/30", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            _run("ip", "-n", self.name, *command)

    def command(self, *command: str) -> list[str]:
        return ["ip", "netns", "exec", self.name, *command]

    # The far end: without a route over the near one, packets to it would be sent into the world.

    def down(self) -> None:
        _run("ip", "-n", self.name, "link", "set", "eth0", "down")

    def up(self) -> None:
        _run("ip", "-n", self.name, "link", "set", "eth0", "up")

    def remove(self) -> None:
        _run("ip", "link", "del", self._cable, check=False)
        _run("ip", "netns", "del", self.name, check=False)


class Line:
    """A way to a port of this machine on which everything takes ``late_by`` seconds, there and back together.

    It has a thread of its own: a test that waits for a command must not hold up the fleet.
    """

    def __init__(self, to_port: int) -> None:
        self.port = free_port()
        self.late_by = 0.0
        self._to_port = to_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="a line of the tests")
        self._server: asyncio.Server | None = None
        self._ways: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(10)

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    def close(self) -> None:
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
        self._loop.close()

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        for way in self._ways:
            way.cancel()
        await asyncio.gather(*self._ways, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._ways.add(task)
        task.add_done_callback(self._ways.discard)
        target = None
        try:
            source, target = await asyncio.open_connection("127.0.0.1", self._to_port)
            both = [
                asyncio.create_task(self._carry(reader, target)),
                asyncio.create_task(self._carry(source, writer)),
            ]
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in both:
                    one.cancel()
                await asyncio.gather(*both, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for end in (writer, target):
                if end is not None:
                    end.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Late, not slow: what is on the way does not hold up what comes after it."""
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(1000)

        async def deliver() -> None:
            while True:
                due, piece = await pieces.get()
                await asyncio.sleep(due - self._loop.time())
                writer.write(piece)
                await writer.drain()
                if not piece:
                    return

        delivering = asyncio.create_task(deliver())
        try:
            while True:
                piece = await reader.read(PIECE_BYTES)
                await pieces.put((self._loop.time() + self.late_by / 2, piece))
                if not piece:
                    break
            await delivering
        finally:
            delivering.cancel()


def _run(*command: str, check: bool = True) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert not check or ran.returncode == 0, f"{' '.join(command)}: {ran.stderr}"

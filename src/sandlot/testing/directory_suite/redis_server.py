"""A private Redis server for tests and measurements, on a free port and in a new folder."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

START_SECONDS = 20.0


# Below the range of ports that the kernel gives to outgoing connections. Such a connection could
# take a port before its server listens.
FIRST_PORT, LAST_PORT = 10_000, 32_000
MOST_PROCESSES = 8


def _own_ports() -> Iterator[int]:
    """The ports of this process. Parallel test processes (pytest-xdist) must not share ports."""
    each = (LAST_PORT - FIRST_PORT) // MOST_PROCESSES
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % MOST_PROCESSES
    begin = secrets.randbelow(each)  # so that two runs at the same time rarely collide
    return (FIRST_PORT + process * each + (begin + number) % each for number in itertools.count())


_ports = _own_ports()


def free_port() -> int:
    """Returns a free port that this process has not used lately.

    The server that got a recent port may not listen yet, or may be restarting.
    """
    for port in _ports:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("the ports never end")


class RedisServer:
    def __init__(self, *options: str) -> None:
        self._options = options
        self._folder = Path(tempfile.mkdtemp(prefix="sandlot-test-redis-"))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                *("redis-server", "--port", str(self.port), "--bind", "127.0.0.1"),
                *("--dir", str(self._folder), "--save", "", *self._options),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, "redis-server ended at once"
            assert time.monotonic() < deadline, "redis-server does not answer"
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.sendall(b"PING\r\n")
                # A server with users wants to know first who is asking.
                return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kills the server, so that it cannot save anything."""
        self.signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()

    def remove(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def redis_server(*options: str) -> Iterator[RedisServer]:
    server = RedisServer(*options)
    try:
        server.start()
        yield server
    finally:
        server.remove()

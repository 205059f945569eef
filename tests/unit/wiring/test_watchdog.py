"""O11: a server that hangs is started again, by systemd or by Docker."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot.testing.eventually import eventually
from sandlot.wiring.watchdog import REPORTS_PER_TIMEOUT, watchdog

pytestmark = pytest.mark.slow  # processes that hang until they are found out


class Systemd:
    """Its end of the notify socket."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.bind(address)
        self.told: list[str] = []

    def hear(self) -> list[str]:
        while True:
            try:
                self.told.append(self.socket.recv(100).decode())
            except BlockingIOError:
                return self.told


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sandlot-test-") as folder:  # short, as a socket's path must be
        yield Path(folder)


@pytest.mark.parametrize("abstract", [False, True])
async def test_systemd_is_told(folder: Path, abstract: bool) -> None:
    name = f"{folder}/notify"
    systemd = Systemd("\0" + name if abstract else name)
    environ = {
        "NOTIFY_SOCKET": "@" + name if abstract else name,
        "WATCHDOG_USEC": str(40_000 * REPORTS_PER_TIMEOUT),
    }
    async with watchdog(environ=environ):
        await eventually(lambda: systemd.hear().count("WATCHDOG=1") >= 3)
        assert systemd.told[0] == "READY=1"
    count = systemd.hear().count("WATCHDOG=1")
    assert systemd.told[-1] == "STOPPING=1"
    await asyncio.sleep(0.1)
    assert systemd.hear().count("WATCHDOG=1") == count
    systemd.socket.close()


async def test_a_loop_that_hangs_tells_nobody(folder: Path) -> None:
    systemd = Systemd(f"{folder}/notify")
    environ = {"NOTIFY_SOCKET": f"{folder}/notify", "WATCHDOG_USEC": str(40_000 * REPORTS_PER_TIMEOUT)}
    async with watchdog(environ=environ):
        await eventually(lambda: "WATCHDOG=1" in systemd.hear())
        before = len(systemd.hear())
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)
        hung_until = asyncio.get_running_loop().time() + 0.5
        while asyncio.get_running_loop().time() < hung_until:
            pass
        assert len(systemd.hear()) <= before + 1
    systemd.socket.close()


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WATCHDOG_USEC": "1000"},
        {"NOTIFY_SOCKET": "/nowhere/notify", "WATCHDOG_USEC": "40000"},
        {"NOTIFY_SOCKET": "/nowhere/notify", "WATCHDOG_USEC": "40000", "WATCHDOG_PID": str(os.getppid())},
    ],
)
async def test_without_systemd_nothing_is_in_the_way(environ: dict[str, str]) -> None:
    async with watchdog(environ=environ):
        await asyncio.sleep(0.05)


HANGS = """
    import asyncio, time
    from sandlot.wiring.watchdog import watchdog

    async def serve():
        async with watchdog(0.5):
            await asyncio.sleep(1.5)
            print("turns", flush=True)
            {hang}
        print("ended well", flush=True)

    asyncio.run(serve())
"""


@pytest.mark.parametrize(
    ("hang", "code"),
    [("while True: pass", 1), ("time.sleep(60)", 1), ("await asyncio.sleep(1)", 0)],
)
def test_a_member_that_hangs_ends_itself(hang: str, code: int) -> None:
    """And says where it hung; one whose loop turns goes on, however long it lives."""
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(HANGS).format(hang=hang)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ran.returncode == code, ran.stderr
    assert ran.stdout.startswith("turns\n")
    assert ("ended well" in ran.stdout) == (code == 0)
    assert ("in serve" in ran.stderr) == (code == 1)

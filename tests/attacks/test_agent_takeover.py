"""S1, S12: user code and the agent's own program, which every sandbox shares and whose helpers run as the same user."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandlot.domain.environment import Tier
from sandlot.domain.errors import LinkInterrupted, NotFound
from sandlot.domain.execution import ExecRequest
from sandlot.providers.base import Sandbox
from sandlot.testing.eventually import eventually
from sandlot.testing.provider_suite import Harness

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

INSIDE = Path(__file__).parent / "inside"
HELPERS = 8
KILL_HELPER = r"""
import os, signal
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        if {b"files", b"net"} & set(open(f"/proc/{pid}/cmdline", "rb").read().split(b"\0")[:2]):
            os.kill(int(pid), signal.SIGKILL)
    except OSError:
        pass
"""
# Each prints the error's name, or "done".
TRY = r"""
import ctypes, errno, fcntl, os
def attempt(name, action):
    try:
        action()
        print(name, "done")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
libc = ctypes.CDLL(None, use_errno=True)
def watch():
    if libc.inotify_add_watch(libc.inotify_init1(0), b"/.sandlot/agent", 0x20) < 0:
        raise OSError(ctypes.get_errno(), "")
attempt("open", lambda: os.open("/.sandlot/agent", os.O_RDONLY))
attempt("flock", lambda: fcntl.flock(os.open("/.sandlot/agent", os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB))
attempt("watch", watch)
attempt("chmod", lambda: os.chmod("/.sandlot/agent", 0o777))
"""


@pytest_asyncio.fixture(loop_scope="session")
async def sandbox(harness: Harness) -> AsyncIterator[Sandbox]:
    sandbox = await harness.create()
    yield sandbox
    await harness.destroy(sandbox.id)


async def _connects_in_vain(sandbox: Sandbox) -> bool:
    """Whether a helper answers that nothing listens. The one that was killed may just be noticed."""
    try:
        await sandbox.connect("127.0.0.1:1")
    except NotFound:
        return True
    except LinkInterrupted:
        return False
    raise AssertionError("something listens")


async def test_helper_cannot_be_held_while_it_starts(sandbox: Sandbox) -> None:
    """S1: whoever has a helper's memory open writes into it what it sends to the worker."""
    await sandbox.files.write("hold.py", (INSIDE / "hold_helpers.py").read_bytes())
    await sandbox.files.write("kill.py", KILL_HELPER.encode())
    holding = asyncio.create_task(sandbox.run(ExecRequest(argv=("python3", "hold.py", "90"), timeout_s=100)))
    await asyncio.sleep(1)
    for _ in range(HELPERS):
        await sandbox.run(ExecRequest(argv=("python3", "kill.py"), timeout_s=20))
        assert (await sandbox.files.stat("kill.py")).size == len(KILL_HELPER)
        await eventually(lambda: _connects_in_vain(sandbox), 20, "the helper for ports is there again")
    await sandbox.files.write("over", b"")
    _, counts, _ = (await holding).stdout.decode().split("\n")
    tried, held = map(int, counts.split())
    assert tried >= HELPERS, "the attack has met too few helpers"
    assert held == 0


async def locked_next_door(harness: Harness) -> str:
    """What a sandbox says that locks the program while another one holds a lock on it."""
    held = (
        TRY
        + "import time; keep = os.open('/.sandlot/agent', 0); fcntl.flock(keep, fcntl.LOCK_EX); time.sleep(60)"
    )
    first, second = await harness.create(), await harness.create()
    await first.start(ExecRequest(argv=("python3", "-c", held)))
    await asyncio.sleep(2)
    result = await second.run(ExecRequest(argv=("python3", "-c", TRY), timeout_s=20))
    return dict(line.split() for line in result.stdout.decode().splitlines())["flock"]


async def test_agents_program_can_be_run_and_nothing_else(harness: Harness, sandbox: Sandbox) -> None:
    """S12: a lock or a watch on a file that all sandboxes share would reach from one to another."""
    result = await sandbox.run(ExecRequest(argv=("python3", "-c", TRY), timeout_s=20))
    said = dict(line.split() for line in result.stdout.decode().splitlines())
    assert said["chmod"] in ("EROFS", "EPERM")
    if harness.environment.tier is Tier.RUNC:
        assert said == {"open": "EACCES", "flock": "EACCES", "watch": "EACCES", "chmod": "EROFS"}
    else:
        assert await locked_next_door(harness) == "done", "gVisor keeps locks inside the sandbox"

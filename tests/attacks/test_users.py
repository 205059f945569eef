"""S6: a user for each sandbox. What the kernel counts per user is not shared, and everything works for any number."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandlot.domain.environment import Tier
from sandlot.domain.execution import ExecRequest, Output
from sandlot.providers.base import Sandbox
from sandlot.providers.docker.host.users import DEFAULT_USERS
from sandlot.testing.eventually import eventually
from sandlot.testing.provider_suite import Harness
from tests.docker.conftest import SLIM, harness_for

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

# Takes as much of one kind as its user may have, says how much it was and keeps it.
USE_UP = r"""
import ctypes, fcntl, os, resource, sys, time
libc = ctypes.CDLL(None, use_errno=True)
held = []
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_long), ("signal", ctypes.c_int), ("notify", ctypes.c_int), ("pad", ctypes.c_byte * 64)]
def timer():
    return libc.timer_create(0, ctypes.byref(Event(0, 14, 0)), ctypes.byref(ctypes.c_long())) == 0
def queue():
    return libc.mq_open(b"/q%d" % len(held), os.O_CREAT | os.O_RDWR, 0o600, None) >= 0
def inotify():
    return libc.inotify_init1(0) >= 0
def pipe():
    ends = os.pipe()
    return fcntl.fcntl(ends[1], 1031, 1 << 20) >= 1 << 20
def locked():
    return libc.mlock(libc.malloc(4096), 4096) == 0
try:
    while len(held) < 10_000 and {"timer": timer, "queue": queue, "inotify": inotify, "pipe": pipe, "locked": locked}[sys.argv[1]]():
        held.append(1)
except OSError:
    pass
print(len(held), flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest_asyncio.fixture(loop_scope="session")
async def pair(harness: Harness) -> AsyncIterator[tuple[Sandbox, Sandbox]]:
    first, second = await harness.create(), await harness.create()
    yield first, second
    await harness.clean()


async def said(sandbox: Sandbox, command: str) -> list[str]:
    result = await sandbox.run(ExecRequest(command=command, timeout_s=60))
    assert result.exit_code == 0, result
    return result.stdout.decode().split()


async def test_no_two_sandboxes_share_a_user(pair: tuple[Sandbox, Sandbox]) -> None:
    users = [int((await said(sandbox, "id -u"))[0]) for sandbox in pair]
    assert len(set(users)) == 2
    assert all(user in DEFAULT_USERS for user in users)


@pytest.mark.parametrize("kind", ["timer", "queue", "inotify", "pipe", "locked"])
async def test_what_the_kernel_counts_per_user_is_not_shared(
    pair: tuple[Sandbox, Sandbox], kind: str
) -> None:
    """31: a neighbour has as much as the first, which keeps all that a user may have."""
    first, second = pair
    greedy = await first.start(ExecRequest(argv=("python3", "-c", USE_UP, kind, "120")))
    async with asyncio.timeout(60):
        taken = await anext(int(event.data) async for event in greedy.events() if isinstance(event, Output))
    if taken == 0:
        pytest.skip(f"this tier has no {kind} for a sandbox")
    other = await second.run(ExecRequest(argv=("python3", "-c", USE_UP, kind, "0"), timeout_s=60))
    assert int(other.stdout) >= taken * 0.9


async def test_everything_of_the_user_works(pair: tuple[Sandbox, Sandbox]) -> None:
    sandbox = pair[0]
    assert await said(sandbox, "id -un; id -gn; whoami; cd ~ && pwd") == ["sandboxuser"] * 3 + ["/workspace"]
    assert (
        await said(sandbox, "echo x >~/f && mkdir -p ~/.cache/a && stat -c %U ~/f ~/.cache /workspace/.")
        == ["sandboxuser"] * 3
    )
    script = "import getpass, os, pwd; print(getpass.getuser(), pwd.getpwuid(os.getuid()).pw_dir, os.path.expanduser(chr(126)))"
    assert await said(sandbox, f"python3 -c '{script}'") == ["sandboxuser", "/workspace", "/workspace"]
    await sandbox.files.write("from-outside", b"x")
    assert await said(sandbox, "stat -c %U from-outside; echo y >>from-outside; wc -c <from-outside") == [
        "sandboxuser",
        "3",
    ]


async def test_slim_image_names_its_user_too() -> None:
    async with harness_for(Tier.RUNC, SLIM) as harness:
        sandbox = await harness.create()
        assert (
            await said(sandbox, "id -un; echo x >/workspace/f; ls -l /workspace/f | cut -d' ' -f3")
            == ["sandboxuser"] * 2
        )


async def test_user_is_kept_when_a_worker_comes_back(harness: Harness) -> None:
    sandbox = await harness.create()
    user = await said(sandbox, "id -u; touch kept")
    provider = await harness.reopen()
    adopted = await provider.adopt(sandbox.id)
    assert await said(adopted, "id -u; stat -c %u kept") == user * 2
    await harness.clean()


async def test_nobody_on_the_host_is_the_sandboxes_user(
    harness: Harness, pair: tuple[Sandbox, Sandbox]
) -> None:
    if harness.environment.tier is Tier.RUNSC:
        pytest.skip("gVisor's processes have no user on the host")
    await pair[0].start(ExecRequest(command="exec sleep 97.5"))

    def owner() -> int | None:
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (process / "cmdline").read_bytes() == b"sleep\0" + b"97.5\0":
                    return process.stat().st_uid
        return None

    await eventually(lambda: owner() is not None, 20)
    assert owner() in DEFAULT_USERS
    assert str(owner()) not in {line.split(":")[2] for line in Path("/etc/passwd").read_text().splitlines()}

"""27, 30 to 32, 41, 46: what there is only so much of. The bound is met, the sandbox answers, and so does its neighbour."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandlot.domain.capacity.limits import Limits
from sandlot.domain.environment import Tier
from sandlot.domain.execution import ExecRequest, ExecResult, Output
from sandlot.providers.base import Sandbox
from sandlot.testing.eventually import eventually
from sandlot.testing.provider_suite import Harness
from tests.attacks.canaries import Watch
from tests.attacks.inside.use_up import FULL_CHILDREN, KINDS, processes_full_of_descriptors

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

PROGRAM = (Path(__file__).parent / "inside" / "use_up.py").read_bytes()
SECONDS = 90.0  # tells slow from never
# gVisor's processes cost it some ten times as much.
ORPHANS = {Tier.RUNC: 10_000, Tier.RUNSC: 300}
ENTRIES = {Tier.RUNC: 50_000, Tier.RUNSC: 10_000}
DEPTH = 1_000
STOPPED_BY = {"EMFILE", "ENOSPC", "ENFILE", "ENOMEM", "EAGAIN", "ETOOMANYREFS", "EINVAL", "ELOOP"}


@pytest_asyncio.fixture(loop_scope="session")
async def sandbox(harness: Harness) -> AsyncIterator[Sandbox]:
    sandbox = await harness.create(Limits(cpus=2.0))
    yield sandbox
    await harness.destroy(sandbox.id)


async def run(sandbox: Sandbox, *argv: str) -> ExecResult:
    return await asyncio.wait_for(sandbox.run(ExecRequest(argv=argv, timeout_s=SECONDS)), SECONDS + 30)


async def answers(sandbox: Sandbox) -> None:
    assert (await run(sandbox, "echo", "alive")).stdout == b"alive\n"
    await sandbox.files.write("alive", b"yes")
    assert await sandbox.files.read_bytes("alive") == b"yes"


@pytest.mark.parametrize("kind", KINDS)
async def test_31_what_is_used_up_harms_nobody_else(watch: Watch, sandbox: Sandbox, kind: str) -> None:
    """30: a full /tmp too. 32: descriptors. While it is all held: the agent answers, and a neighbour."""
    await sandbox.files.write("use_up.py", PROGRAM)
    greedy = await sandbox.start(ExecRequest(argv=("python3", "use_up.py", kind)))
    said = b""
    async with asyncio.timeout(SECONDS):
        async for event in greedy.events():
            said += event.data if isinstance(event, Output) else b""
            if said.endswith(b"\n"):
                break
    taken, why = said.decode().split()
    assert int(taken) > 0
    if KINDS[kind] is processes_full_of_descriptors:
        assert (int(taken), why) == (FULL_CHILDREN, "enough"), "all are as full as each may be"
    elif (kind, watch.harness.environment.tier) != ("names", Tier.RUNSC):
        # gVisor counts no names in a tmpfs: there they are the sandbox's memory, as anything that a command keeps.
        assert why in STOPPED_BY, said
    await answers(sandbox)
    assert (await run(watch.neighbour, "echo", "fine")).stdout == b"fine\n"
    await sandbox.kill(greedy.exec_id)


async def test_27_orphans_are_reaped(harness: Harness, sandbox: Sandbox) -> None:
    """Each ends when its parent has gone, so that PID 1 has to take it in."""
    count = ORPHANS[harness.environment.tier]
    script = f"for i in $(seq {count}); do (true & ) ; done"
    assert (await run(sandbox, "sh", "-c", script)).exit_code == 0

    async def none_left() -> bool:
        return (await sandbox.health()).processes < 5

    await eventually(none_left, SECONDS, "zombies")
    zombies = await run(sandbox, "sh", "-c", "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l")
    assert zombies.stdout == b"0\n"


async def test_41_spinning_threads_leave_others_their_turn(watch: Watch, harness: Harness) -> None:
    """64 of them, on half a core: what is bounded is the sandbox, not its neighbours and not the worker."""
    sandbox = await harness.create()
    spin = "import threading\ndef spin():\n    while True: pass\nfor _ in range(64): threading.Thread(target=spin).start()"
    spinning = await sandbox.start(ExecRequest(argv=("python3", "-c", spin)))
    for number in range(20):
        assert (await run(watch.neighbour, "echo", str(number))).stdout == b"%d\n" % number
    await answers(sandbox)
    used = await harness.provider.stats(sandbox.id)
    await sandbox.kill(spinning.exec_id)
    await answers(sandbox)
    assert used.cpu_ns > 0
    await harness.destroy(sandbox.id)


async def test_46_wide_and_deep_folders(harness: Harness, sandbox: Sandbox) -> None:
    """A million of them and 5,000 deep, over HTTP: tests/service/test_hostile_files.py. Here on both tiers."""
    entries = ENTRIES[harness.environment.tier]
    script = f"""
import os
os.mkdir("wide")
for i in range({entries}):
    os.close(os.open(f"wide/{{i:06}}", os.O_CREAT))
for _ in range({DEPTH}):
    os.mkdir("d"); os.chdir("d")
"""
    made = await run(sandbox, "python3", "-c", script)
    assert made.exit_code == 0, made
    page = await sandbox.files.list("wide", limit=100)
    assert [entry.name for entry in page.entries] == [f"{i:06}" for i in range(100)]
    walked = await sandbox.files.walk("d", limit=50)
    assert (len(walked.entries), walked.truncated) == (50, True)
    assert await sandbox.files.remove("d", recursive=True) == DEPTH
    assert await sandbox.files.remove("wide", recursive=True) == entries + 1

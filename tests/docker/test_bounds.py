"""Floods, slow readers and many execs: exact bytes, bounded memory on both sides, and nobody else disturbed."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest
from bench.rig import rss_bytes

from sandlot.domain.capacity.limits import MIB, Limits
from sandlot.domain.environment import Tier
from sandlot.domain.execution import ExecRequest, Exited, Output
from sandlot.providers.base import Sandbox
from sandlot.testing.eventually import eventually
from sandlot.testing.provider_suite import Harness

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

AGENT_BOUND_BYTES = 150 * MIB  # of the whole sandbox, with the flooding command in it
WORKER_BOUND_BYTES = 48 * MIB
# Many times what either side may keep. gVisor copies a tenth as fast.
LONG_LINE_BYTES = {Tier.RUNC: 1_000_000_000, Tier.RUNSC: 300_000_000}


async def comes_below(harness: Harness, sandbox: Sandbox, bound: int) -> None:
    """What has ended gives its memory back a little later; what is leaked stays."""

    async def below() -> bool:
        return await used(harness, sandbox) < bound

    await eventually(below, 20, f"the sandbox uses less than {bound // MIB} MiB")


async def used(harness: Harness, sandbox: Sandbox) -> int:
    return (await harness.provider.stats(sandbox.id)).memory_bytes


async def test_a_thousand_one_after_another(harness: Harness) -> None:
    sandbox = await harness.create(Limits(cpus=2.0))  # half a core would only make it wait
    for number in range(100):  # what is allocated once is allocated now
        await sandbox.run(ExecRequest(command=f"echo {number}"))
    gc.collect()
    worker, inside = rss_bytes(), await used(harness, sandbox)
    for number in range(1000):
        result = await sandbox.run(ExecRequest(command=f"echo {number}; exit {number % 7}"))
        assert (result.stdout, result.exit_code) == (f"{number}\n".encode(), number % 7)
    gc.collect()
    assert rss_bytes() - worker < 16 * MIB
    await comes_below(harness, sandbox, inside + 40 * MIB)
    await harness.destroy(sandbox.id)


async def test_ten_seconds_of_yes(harness: Harness) -> None:
    sandbox = await harness.create()
    worker = rss_bytes()
    flood = asyncio.create_task(sandbox.run(ExecRequest(command="yes", output_limit=1 * MIB, timeout_s=10)))
    slowest = 0.0
    while not flood.done():
        begin = time.monotonic()
        assert (await sandbox.run(ExecRequest(command="echo hi"))).stdout == b"hi\n"
        slowest = max(slowest, time.monotonic() - begin)
        assert rss_bytes() - worker < WORKER_BOUND_BYTES
        assert await used(harness, sandbox) < AGENT_BOUND_BYTES
        await asyncio.sleep(0.5)
    result = await flood
    assert result.timed_out
    assert len(result.stdout) == MIB
    assert result.stdout.startswith(b"y\n" * (MIB // 4))
    assert result.truncated
    assert slowest < 10
    await harness.destroy(sandbox.id)


async def test_one_line_without_end(harness: Harness) -> None:
    sandbox = await harness.create(Limits(cpus=2.0))
    worker, length = rss_bytes(), LONG_LINE_BYTES[harness.environment.tier]
    request = ExecRequest(
        command=f"head -c {length} /dev/zero | tr '\\0' x", output_limit=4 * MIB, timeout_s=120
    )
    result = await sandbox.run(request)
    assert result.stdout == b"x" * (4 * MIB)
    assert (result.truncated, result.exited.output_bytes) == (True, length)
    assert rss_bytes() - worker < WORKER_BOUND_BYTES
    await comes_below(harness, sandbox, AGENT_BOUND_BYTES)
    await harness.destroy(sandbox.id)


async def test_reader_of_one_byte_a_second(harness: Harness) -> None:
    """An uncapped exec waits for a reader that takes next to nothing; memory and neighbours do not notice."""
    sandbox = await harness.create()
    worker = rss_bytes()
    slow = await sandbox.start(ExecRequest(command="yes", output_limit=None, timeout_s=120))
    events = slow.events()
    taken = 0
    for _ in range(5):
        event = await anext(events)
        taken += len(event.data) if isinstance(event, Output) else 0
        for number in range(5):
            assert (await sandbox.run(ExecRequest(command=f"echo {number}"))).exit_code == 0
        await asyncio.sleep(1)
        assert rss_bytes() - worker < WORKER_BOUND_BYTES
        assert await used(harness, sandbox) < AGENT_BOUND_BYTES
    assert taken > 0
    await sandbox.kill(slow.exec_id)
    last = None
    async for last in events:
        if isinstance(last, Output):  # what it printed before it was killed comes whole
            assert last.offset == taken
            taken += len(last.data)
    assert isinstance(last, Exited)
    assert (last.reason, last.output_bytes) == ("killed", taken)
    await harness.destroy(sandbox.id)

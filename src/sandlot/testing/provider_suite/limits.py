"""Limits: what a sandbox may not use, and that reaching a limit is told and survived."""

from __future__ import annotations

import asyncio

from sandlot.domain.execution import Verdict
from sandlot.domain.limits import MIB, Limits
from sandlot.providers.base import Sandbox
from sandlot.testing.provider_suite.harness import Cases, Harness, eventually, ok, run

# Doubles a string until memory ends; needs nothing but a shell.
MEMORY_BOMB = 'x=$(printf "%01000000d" 0); while :; do x=$x$x; done'


class LimitCases(Cases):
    async def test_out_of_memory_is_told_and_survived(self, provider_harness: Harness) -> None:
        sandbox = await provider_harness.create(Limits(memory_bytes=192 * MIB))
        result = await run(sandbox, f"echo begun; {MEMORY_BOMB}", timeout_s=60)
        assert result.verdict is Verdict.OOM, result
        assert result.stdout == b"begun\n"
        assert await ok(sandbox, "echo alive") == "alive\n"
        assert (await sandbox.health()).oom_kills >= 1

    async def test_out_of_memory_in_a_shell_is_told(self, provider_harness: Harness) -> None:
        sandbox = await provider_harness.create(Limits(memory_bytes=192 * MIB))
        if (await run(sandbox, "command -v bash")).exit_code != 0:
            return
        result = await run(sandbox, MEMORY_BOMB, shell="s", timeout_s=60)
        assert result.verdict is Verdict.OOM, result
        assert result.exited.shell_ended
        assert await ok(sandbox, "echo alive", shell="s") == "alive\n"

    async def test_full_tmp_is_told(self, fresh: Sandbox) -> None:
        result = await run(fresh, "head -c 300000000 /dev/zero >/tmp/fill", timeout_s=60)
        assert result.exit_code != 0
        assert result.verdict is Verdict.DISK_FULL, result
        await ok(fresh, "rm /tmp/fill; echo room >/tmp/again")

    async def test_process_bomb_leaves_the_agent_answering(self, provider_harness: Harness) -> None:
        sandbox = await provider_harness.create(Limits(pids=64))
        bomb = asyncio.create_task(run(sandbox, "f() { sleep 20 & f; }; f; sleep 20", timeout_s=4))
        await asyncio.sleep(1)
        for _ in range(5):
            await asyncio.wait_for(sandbox.health(), 3)
        result = await bomb
        assert result.exit_code != 0

        async def works() -> bool:
            return (await run(sandbox, "echo alive")).stdout == b"alive\n"

        await eventually(works, 10, "commands run again after the bomb's timeout")
        assert (await sandbox.health()).processes < 20

    async def test_fork_bomb_ends_with_its_timeout(self, provider_harness: Harness) -> None:
        sandbox = await provider_harness.create(Limits(pids=64))
        result = await run(sandbox, ":(){ :|:& };:; sleep 30", timeout_s=2)
        assert result.exit_code != 0 or result.timed_out
        assert await ok(sandbox, "echo alive") == "alive\n"

        async def quiet() -> bool:
            return (await sandbox.health()).processes < 10

        await eventually(quiet, 10, "the bomb is gone")

    async def test_limits_can_be_changed(self, provider_harness: Harness) -> None:
        """Less and back again: more than a sandbox was made with is not to be had on every tier."""
        sandbox = await provider_harness.create(Limits(memory_bytes=512 * MIB))
        fits = 'x=$(printf "%0150000000d" 0); echo ${#x}'
        await provider_harness.provider.update_limits(sandbox.id, Limits(memory_bytes=96 * MIB))
        assert (await run(sandbox, fits, timeout_s=60)).verdict is Verdict.OOM
        await provider_harness.provider.update_limits(sandbox.id, Limits(memory_bytes=512 * MIB))
        assert await ok(sandbox, fits, timeout_s=60) == "150000000\n"

    async def test_stats(self, fresh: Sandbox, provider_harness: Harness) -> None:
        await ok(fresh, "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done")
        stats = await provider_harness.provider.stats(fresh.id)
        assert stats.memory_bytes > MIB
        assert stats.cpu_ns > 0

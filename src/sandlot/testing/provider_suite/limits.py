"""Limits: a sandbox cannot exceed them, and it reports and survives reaching one."""

from __future__ import annotations

import asyncio

from sandlot.domain.capacity.limits import MIB, Limits
from sandlot.domain.errors import SandlotError
from sandlot.domain.execution import Verdict
from sandlot.providers.base import Sandbox
from sandlot.testing.eventually import eventually
from sandlot.testing.provider_suite.harness import Cases, Harness, ok, require, run

# Doubles a string until memory runs out. It needs only a shell.
MEMORY_BOMB = 'x=$(printf "%01000000d" 0); while :; do x=$x$x; done'


async def runs_again(sandbox: Sandbox) -> None:
    """Waits until commands run again after a bomb.

    The bomb's processes end one by one, and until then there is no room for a command.
    """

    async def works() -> bool:
        try:
            return (await run(sandbox, "echo alive")).stdout == b"alive\n"
        except SandlotError:
            return False

    await eventually(works, 20, "commands run again")


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
        await require(sandbox, "bash")
        result = await run(sandbox, MEMORY_BOMB, shell="s", timeout_s=60)
        assert result.verdict is Verdict.OOM, result
        assert result.exited.shell_ended
        assert await ok(sandbox, "echo alive", shell="s") == "alive\n"

    async def test_full_tmp_is_told(self, fresh: Sandbox) -> None:
        result = await run(fresh, "head -c 300000000 /dev/zero >/tmp/fill", timeout_s=60)
        assert result.exit_code != 0
        assert result.verdict is Verdict.DISK_FULL, result
        # U5: a command that later fails for another reason does not get the verdict DISK_FULL.
        assert (await run(fresh, "false")).verdict is Verdict.NONZERO
        assert (await run(fresh, "echo more >/tmp/another")).verdict is Verdict.DISK_FULL
        await ok(fresh, "rm /tmp/fill; echo room >/tmp/again")

    async def test_process_bomb_leaves_the_agent_answering(self, provider_harness: Harness) -> None:
        sandbox = await provider_harness.create(Limits(pids=64))
        bomb = asyncio.create_task(run(sandbox, "f() { sleep 30 & f; }; f; sleep 30", timeout_s=10))
        await asyncio.sleep(1)
        for _ in range(5):
            await asyncio.wait_for(sandbox.health(), 8)
        result = await bomb
        assert result.exit_code != 0
        await runs_again(sandbox)

        async def few_processes() -> bool:
            return (await sandbox.health()).processes < 20

        await eventually(few_processes, 20, "the bomb is gone")

    async def test_fork_bomb_ends_with_its_timeout(self, provider_harness: Harness) -> None:
        sandbox = await provider_harness.create(Limits(pids=64))
        # Bash tries again when it cannot fork. Another shell would end at once.
        await require(sandbox, "bash")
        result = await run(sandbox, ":(){ :|:& };:; sleep 30", timeout_s=2)
        assert result.verdict is Verdict.TIMEOUT, result
        await runs_again(sandbox)

        async def few_processes() -> bool:
            return (await sandbox.health()).processes < 10

        await eventually(few_processes, 20, "the bomb is gone")

    async def test_limits_can_be_changed(self, provider_harness: Harness) -> None:
        """Lowers a limit and restores it: not every tier can raise it above its first value."""
        sandbox = await provider_harness.create(Limits(memory_bytes=512 * MIB))
        # 40 blocks keep the buffer alive for a while: on gVisor the agent samples memory ten times
        # a second, and one block would be gone too soon.
        fits = "dd if=/dev/zero of=/dev/null bs=150M count=40 2>/dev/null && echo fits"
        await provider_harness.provider.update_limits(sandbox.id, Limits(memory_bytes=96 * MIB))
        assert (await run(sandbox, fits, timeout_s=60)).verdict is Verdict.OOM
        await provider_harness.provider.update_limits(sandbox.id, Limits(memory_bytes=512 * MIB))
        assert await ok(sandbox, fits, timeout_s=60) == "fits\n"

    async def test_stats(self, fresh: Sandbox, provider_harness: Harness) -> None:
        await ok(fresh, "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done")
        stats = await provider_harness.provider.stats(fresh.id)
        assert stats.memory_bytes > MIB
        assert stats.cpu_ns > 0

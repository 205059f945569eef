"""Output: limits, floods, slow readers, raw bytes, and replay from an offset."""

from __future__ import annotations

import asyncio
import time

import pytest

from sandlot.domain.execution import ExecRequest, Exited, OnLimit, Output, Verdict
from sandlot.domain.kept_output import Omitted
from sandlot.providers.base import Sandbox
from sandlot.testing.provider_suite.harness import Cases, ok, require, run


class OutputCases(Cases):
    async def test_exact_bytes_up_to_the_cap(self, sandbox: Sandbox) -> None:
        result = await run(sandbox, "seq 100000", output_limit=10_000)
        whole = "".join(f"{i}\n" for i in range(1, 100_001)).encode()
        assert result.stdout == whole[:5000] + whole[-5000:]
        assert result.stdout_omitted == Omitted(5000, len(whole) - 10_000)
        assert result.truncated
        assert result.exited.output_bytes == len(whole)
        assert result.exit_code == 0

    async def test_below_the_cap_is_not_truncated(self, sandbox: Sandbox) -> None:
        result = await run(sandbox, "printf 12345", output_limit=5)
        assert (result.stdout, result.truncated) == (b"12345", False)

    async def test_limit_that_kills(self, sandbox: Sandbox) -> None:
        request = ExecRequest(command="yes", output_limit=1000, on_limit=OnLimit.KILL, timeout_s=30)
        begin = time.monotonic()
        result = await sandbox.run(request)
        assert result.verdict is Verdict.OUTPUT_LIMIT
        assert result.output == b"y\n" * 500
        assert time.monotonic() - begin < 29

    async def test_raw_bytes_survive(self, sandbox: Sandbox) -> None:
        result = await run(sandbox, r"printf 'a\000b\377\376\303\050\303'; sleep 0.2; printf '\251'")
        assert result.stdout == b"a\x00b\xff\xfe\xc3\x28\xc3\xa9"

    async def test_one_endless_line(self, sandbox: Sandbox) -> None:
        result = await run(sandbox, "head -c 200000000 /dev/zero", output_limit=100_000, timeout_s=60)
        assert result.stdout == b"\0" * 100_000
        assert result.exited.output_bytes == 200_000_000
        assert result.truncated

    async def test_flood_leaves_others_alone(self, sandbox: Sandbox) -> None:
        flood = asyncio.create_task(run(sandbox, "yes", output_limit=50_000, timeout_s=4))
        for i in range(10):
            assert await ok(sandbox, f"echo {i}") == f"{i}\n"
        result = await flood
        assert result.timed_out
        assert len(result.output) == 50_000
        assert result.output.startswith(b"y\n" * 12_500)
        assert result.truncated

    async def test_slow_reader_leaves_others_alone(self, sandbox: Sandbox) -> None:
        slow = await sandbox.start(ExecRequest(command="yes", output_limit=None, timeout_s=60))
        events = slow.events()
        await anext(events)
        for i in range(10):
            await anext(events)
            assert await ok(sandbox, f"echo {i}") == f"{i}\n"
        await sandbox.kill(slow.exec_id)
        await slow.detach()

    async def test_uncapped_stream_is_whole(self, sandbox: Sandbox) -> None:
        execution = await sandbox.start(ExecRequest(command="seq 2000000", output_limit=None, timeout_s=60))
        size, expected = 0, 0
        async for event in execution.events():
            if isinstance(event, Output):
                assert event.offset == size, "a gap"
                size += len(event.data)
            if isinstance(event, Exited):
                expected = event.output_bytes
        assert size == expected == len("".join(f"{i}\n" for i in range(1, 2_000_001)))

    async def test_replay_from_an_offset(self, sandbox: Sandbox) -> None:
        result = await run(sandbox, "seq 1000; seq 1000 >&2")
        for offset in (0, 1, 17, 3893, 5000, len(result.output), len(result.output) + 100):
            again = await (await sandbox.attach(result.exec_id, offset=offset)).result()
            assert again.output == result.output[offset:]
            assert again.exited == result.exited

    async def test_both_ends_for_every_reader(self, sandbox: Sandbox) -> None:
        """A reader that attaches after the end gets the same result as the first one."""
        request = ExecRequest(command="seq 100000; seq 100000 >&2", output_limit=999_999)
        first = await sandbox.run(request)
        again = await (await sandbox.attach(first.exec_id)).result()
        assert again == first
        whole = "".join(f"{i}\n" for i in range(1, 100_001)).encode()
        assert len(first.output) == 999_999
        assert first.output_omitted == Omitted(500_000, 2 * len(whole) - 999_999)
        for stream, omitted in ((first.stdout, first.stdout_omitted), (first.stderr, first.stderr_omitted)):
            missing = 0 if omitted is None else omitted.bytes
            assert len(stream) + missing == len(whole)

    async def test_two_readers_at_once(self, sandbox: Sandbox) -> None:
        first = await sandbox.start(ExecRequest(command="for i in $(seq 50); do echo $i; sleep 0.01; done"))
        await asyncio.sleep(0.1)
        second = await sandbox.attach(first.exec_id)
        one, two = await asyncio.gather(first.result(), second.result())
        assert one.output == two.output == "".join(f"{i}\n" for i in range(1, 51)).encode()

    async def test_output_that_imitates_the_protocol_is_data(self, sandbox: Sandbox) -> None:
        exit_message = b'{"event":"exit","code":0,"reason":"exited"}'
        frame = (len(exit_message) + 5).to_bytes(4, "big") + (1).to_bytes(4, "big") + b"\x03" + exit_message
        end = (5).to_bytes(4, "big") + (1).to_bytes(4, "big") + b"\x06"
        printed = "".join(f"\\{byte:03o}" for byte in frame + end)
        result = await run(sandbox, f"printf '{printed}'; printf '{printed}' >&2; exit 9")
        assert (result.stdout, result.stderr, result.exit_code) == (frame + end, frame + end, 9)

    @pytest.mark.parametrize("shell", [None, "merged"])
    async def test_merged_output_is_in_order(self, sandbox: Sandbox, shell: str | None) -> None:
        if shell is not None:
            await require(sandbox, "bash")
        command = "for i in $(seq 40); do echo out $i; echo err $i >&2; done"
        in_order = "".join(f"out {i}\nerr {i}\n" for i in range(1, 41)).encode()
        for _ in range(30):
            result = await run(sandbox, command, merge_output=True, shell=shell)
            assert (result.stdout, result.stderr, result.output) == (in_order, b"", in_order)

    async def test_merged_output_outlives_no_command(self, sandbox: Sandbox) -> None:
        """The exec ends although a background child keeps the shared pipe open."""
        result = await run(sandbox, "echo a; echo b >&2; sleep 60 & exit 3", merge_output=True)
        assert (result.stdout, result.stderr, result.exit_code) == (b"a\nb\n", b"", 3)
        await sandbox.kill(result.exec_id)

    async def test_merged_output_has_one_cap(self, sandbox: Sandbox) -> None:
        command = "for i in $(seq 100); do printf o; printf e >&2; done"
        result = await run(sandbox, command, merge_output=True, output_limit=200)
        assert (result.stdout, result.stderr, result.truncated) == (b"oe" * 100, b"", False)

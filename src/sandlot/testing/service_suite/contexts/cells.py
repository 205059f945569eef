"""Cells: their values, text and errors, their ids, and how they end."""

from __future__ import annotations

import asyncio
import time

import pytest

from sandlot.client.async_session import AsyncSession
from sandlot.client.code.code_result import CodeFailed, CodeResult
from sandlot.domain.code.events import CellData, CellError, CellText
from sandlot.domain.errors import Conflict, InvalidRequest, NotFound
from sandlot.domain.execution import ExecRequest, Verdict
from sandlot.testing.eventually import eventually
from sandlot.testing.service_suite.contexts.coded import CodeCases
from sandlot.testing.service_suite.harness import unique

# Longer than a kernel takes to start on a busy machine.
WAIT_S = 60.0


class CellCases(CodeCases):
    async def test_a_cell_has_a_value_and_text(self, coded: AsyncSession) -> None:
        result = await coded.code.run("print('hello')\n6 * 7")
        assert result.ok, result
        assert (result.text, result.stdout, result.error) == ("42", "hello\n", None)
        (value,) = result.results
        assert value.main
        assert result.raw.session_id == coded.id
        nothing = await coded.code.run("x = 1")
        assert (nothing.text, nothing.results, nothing.stdout) == ("", (), "")
        assert nothing.execution_count == (result.execution_count or 0) + 1

    async def test_variables_stay(self, coded: AsyncSession) -> None:
        await coded.code.run("total = 40", check=True)
        await coded.code.run("total += 2", check=True)
        assert (await coded.code.run("total")).text == "42"

    async def test_an_error_is_a_result(self, coded: AsyncSession) -> None:
        result = await coded.code.run("print('before')\n1 / 0\nprint('after')")
        assert (result.ok, result.verdict, result.stdout) == (False, Verdict.NONZERO, "before\n")
        assert result.error is not None
        assert (result.error.name, result.error.value) == ("ZeroDivisionError", "division by zero")
        assert "ZeroDivisionError" in result.error.traceback
        assert "\x1b" not in result.error.traceback
        with pytest.raises(CodeFailed, match="ZeroDivisionError: division by zero") as caught:
            await coded.code.run("1 / 0", check=True)
        assert caught.value.result.error == result.error or caught.value.result.error is not None
        assert caught.value.may_have_executed
        assert (await coded.code.run("1 + 1")).text == "2"

    async def test_code_that_is_no_code(self, coded: AsyncSession) -> None:
        result = await coded.code.run("x = = 1")
        assert result.error is not None
        assert result.error.name == "SyntaxError"

    async def test_the_same_id_runs_once(self, coded: AsyncSession) -> None:
        await coded.code.run("runs = 0", check=True)
        exec_id = unique("cell")
        first = await coded.code.run("runs += 1\nruns", exec_id=exec_id)
        again = await coded.code.run("runs += 1\nruns", exec_id=exec_id)
        events = [event async for event in coded.code.stream("runs += 1\nruns", exec_id=exec_id)]
        assert isinstance(events[-1], CodeResult)
        assert [first.text, again.text, events[-1].text] == ["1", "1", "1"]
        assert (await coded.code.run("runs")).text == "1"
        with pytest.raises(Conflict):
            await coded.code.run("runs", exec_id=exec_id)

    async def test_events_come_while_code_runs(self, coded: AsyncSession) -> None:
        code = "import time\nprint('one')\ntime.sleep(1.5)\nprint('two')\n3"
        came = [(event, time.monotonic()) async for event in coded.code.stream(code)]
        texts = [(event.text, at) for event, at in came if isinstance(event, CellText)]
        assert "".join(text for text, _ in texts) == "one\ntwo\n"
        assert texts[-1][1] - texts[0][1] >= 0.3
        values = [event for event, _ in came if isinstance(event, CellData)]
        assert [value.data["text/plain"] for value in values] == ["3"]
        result = came[-1][0]
        assert isinstance(result, CodeResult)
        assert (result.ok, result.stdout, result.text) == (True, "one\ntwo\n", "3")

    async def test_callbacks(self, coded: AsyncSession) -> None:
        out: list[str] = []
        values: list[str | None] = []
        events: list[object] = []
        result = await coded.code.run(
            "print('é')\n'value'",
            on_stdout=out.append,
            on_result=lambda value: values.append(value.text),
            on_event=events.append,
        )
        assert ("".join(out), values, result.text) == ("é\n", ["'value'"], "'value'")
        assert [event.text for event in events if isinstance(event, CellText)] == out
        await coded.code.run("1 / 0", on_event=events.append)
        assert any(isinstance(event, CellError) for event in events)

    async def test_a_timeout_interrupts_and_keeps_variables(self, coded: AsyncSession) -> None:
        await coded.code.run("import time\nkept = 5", check=True)
        result = await coded.code.run("print('begun')\ntime.sleep(60)", timeout=1.0)
        assert (result.ok, result.timed_out, result.verdict) == (False, True, Verdict.TIMEOUT)
        assert result.stdout == "begun\n"
        assert (await coded.code.run("kept", timeout_s=WAIT_S)).text == "5"

    async def test_a_kill_interrupts_and_keeps_variables(self, coded: AsyncSession) -> None:
        await coded.code.run("import time\nkept = 6", check=True)
        exec_id = unique("cell")
        running = asyncio.ensure_future(coded.code.run("time.sleep(60)", exec_id=exec_id))
        execution = await coded.exec(exec_id)
        await eventually(lambda: _runs(coded, exec_id), WAIT_S, "the cell runs")
        assert await execution.kill() >= 1
        result = await asyncio.wait_for(running, WAIT_S)
        assert (result.ok, result.verdict) == (False, Verdict.KILLED)
        assert (await coded.code.run("kept", timeout_s=WAIT_S)).text == "6"

    async def test_cells_of_one_context_run_one_after_another(self, coded: AsyncSession) -> None:
        await coded.code.run("import time\nseen = 0", check=True)
        code = "before = seen\ntime.sleep(0.1)\nseen = before + 1"
        results = await asyncio.gather(*(coded.code.run(code) for _ in range(3)))
        assert all(result.ok for result in results)
        assert (await coded.code.run("seen")).text == "3"

    async def test_requests_that_are_none(self, coded: AsyncSession) -> None:
        with pytest.raises(TypeError, match="timeout_s"):
            await coded.code.run("1", timeout_ss=1)  # type: ignore[call-arg]
        with pytest.raises(InvalidRequest, match="not a valid id"):
            await coded.code.run("1", context="No Context")
        with pytest.raises(NotFound):
            await coded.code.run("1", context="nobody-made-it")
        with pytest.raises(InvalidRequest, match="cell"):
            ExecRequest(command="true", argv=("true",))
        commands = await coded.run("echo not code")
        assert commands.output == "not code\n"


async def _runs(session: AsyncSession, exec_id: str) -> bool:
    return any(each.exec_id == exec_id and each.running for each in await session.execs())

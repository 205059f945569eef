"""The code interpreter's SDK. ``code_calls.py URL KEY sync|async``; it needs what ``test_code_interpreter`` scripts."""

from __future__ import annotations

import asyncio
import base64
import os
import sys
import time

URL, KEY, FORM = sys.argv[1:4]
os.environ.update(E2B_API_KEY=KEY, E2B_API_URL=URL, E2B_SANDBOX_URL=URL)

from checking import caller, run  # noqa: E402
from e2b_code_interpreter import AsyncSandbox, Sandbox  # noqa: E402

import e2b  # noqa: E402

got = caller(FORM)
SDK = Sandbox if FORM == "sync" else AsyncSandbox


class Made:
    sandbox: Sandbox | AsyncSandbox


async def fails(kind, call, *arguments, **options):
    try:
        await got(call, *arguments, **options)
    except kind as error:
        return error
    raise AssertionError(f"nothing was raised where {kind} was expected")


async def check_create() -> None:
    Made.sandbox = await got(SDK.create)
    assert (await got(Made.sandbox.get_info)).template_id == "code", "the default template"


async def check_run_code() -> None:
    execution = await got(Made.sandbox.run_code, "print('hi')\n20 + 22")
    assert execution.text == "42"
    assert execution.logs.stdout == ["hi\n"]
    assert execution.error is None
    assert execution.execution_count == 1


async def check_state_stays() -> None:
    await got(Made.sandbox.run_code, "x = 5")
    assert (await got(Made.sandbox.run_code, "x + 1")).text == "6"


async def check_results() -> None:
    execution = await got(Made.sandbox.run_code, "show everything")
    plot, table = execution.results
    assert base64.b64decode(plot.png) == b"a picture"
    assert plot.text == "<Figure>"
    assert not plot.is_main_result
    assert (plot.chart.title, plot.chart.elements[0].angle) == ("Shares", 360)
    assert table.data == {"n": [1, 2]}
    assert table.html == "<table></table>"
    assert table.is_main_result
    assert table.json == {"rows": [1, 2]}
    assert table.extra == {"application/x-own": "own"}
    assert set(table.formats()) >= {"html", "json", "markdown", "latex", "svg"}


async def check_callbacks() -> None:
    out, results, errors = [], [], []
    await got(
        Made.sandbox.run_code,
        "fails loudly",
        on_stdout=lambda each: out.append((each.line, each.timestamp)),
        on_stderr=lambda each: out.append((each.line, each.error)),
        on_result=results.append,
        on_error=errors.append,
    )
    assert [text for text, _ in out] == ["before\n", "trouble\n"]
    assert abs(out[0][1] / 1e9 - time.time()) < 60, "nanoseconds since the epoch"
    assert results == []
    assert [each.name for each in errors] == ["ValueError"]


async def check_errors() -> None:
    error = (await got(Made.sandbox.run_code, "fails loudly")).error
    assert (error.name, error.value) == ("ValueError", "it was wrong")
    assert "ValueError: it was wrong" in error.traceback


async def check_much_output() -> None:
    execution = await got(Made.sandbox.run_code, "much output")
    assert "".join(execution.logs.stdout) == "x" * 10_000_000


async def check_env_vars() -> None:
    assert (await got(Made.sandbox.run_code, "tell MINE", envs={"MINE": "yes"})).text == "yes"


async def check_languages() -> None:
    for language, expected in (("python", "python"), ("js", "javascript"), ("ts", "typescript"), ("R", "r")):
        assert (await got(Made.sandbox.run_code, "tell language", language=language)).text == expected
    error = await fails(e2b.SandboxException, Made.sandbox.run_code, "1", language="java")
    assert "javascript" in str(error)


async def check_contexts() -> None:
    context = await got(Made.sandbox.create_code_context, language="python", cwd="/tmp")
    assert (context.language, context.cwd) == ("python", "/tmp")
    await got(Made.sandbox.run_code, "y = 7", context=context)
    assert (await got(Made.sandbox.run_code, "y", context=context)).text == "7"
    assert (await got(Made.sandbox.run_code, "y")).error is not None, "the default context has its own"
    assert context.id in [each.id for each in await got(Made.sandbox.list_code_contexts)]
    await got(Made.sandbox.restart_code_context, context)
    assert (await got(Made.sandbox.run_code, "y", context=context)).error is not None
    await got(Made.sandbox.remove_code_context, context)
    assert context.id not in [each.id for each in await got(Made.sandbox.list_code_contexts)]
    await fails(e2b.NotFoundException, Made.sandbox.remove_code_context, context)
    await fails(e2b.NotFoundException, Made.sandbox.restart_code_context, "missing")


async def check_timeout_interrupts() -> None:
    await fails(e2b.TimeoutException, Made.sandbox.run_code, "slow", timeout=1)
    # Code in one context runs one after another, so this answers only if the slow one was interrupted.
    assert (await asyncio.wait_for(got(Made.sandbox.run_code, "20 + 22"), 15)).text == "42"


async def check_the_end() -> None:
    assert await got(Made.sandbox.kill)
    await fails(e2b.TimeoutException, Made.sandbox.run_code, "1")


run(globals())

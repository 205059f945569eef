"""Real code by the code interpreter's SDK. ``kernel_calls.py URL KEY sync|async TEMPLATE``; it has Python and Bash."""

from __future__ import annotations

import base64
import os
import sys
import time

URL, KEY, FORM, TEMPLATE = sys.argv[1:5]
os.environ.update(E2B_API_KEY=KEY, E2B_API_URL=URL, E2B_SANDBOX_URL=URL)

from checking import caller, run  # noqa: E402
from e2b_code_interpreter import AsyncSandbox, Sandbox  # noqa: E402

import e2b  # noqa: E402

got = caller(FORM)
SDK = Sandbox if FORM == "sync" else AsyncSandbox
PICTURE = b"\x89PNG not really"


class Made:
    sandbox: Sandbox | AsyncSandbox


async def ran(code, **options):
    return await got(Made.sandbox.run_code, code, **options)


async def check_state_stays() -> None:
    Made.sandbox = await got(SDK.create, TEMPLATE, timeout=300)
    execution = await ran("x = 20; print('hi')")
    assert execution.logs.stdout == ["hi\n"], execution
    assert (await ran("x + 22")).text == "42"


async def check_plot() -> None:
    execution = await ran(f"from IPython.display import Image\nImage(data={PICTURE!r}, format='png')")
    (result,) = execution.results
    assert base64.b64decode(result.png) == PICTURE
    assert result.is_main_result


async def check_table() -> None:
    execution = await ran(
        "class Table:\n    def _repr_html_(self): return '<table></table>'\ndisplay(Table())\nTable()"
    )
    assert [each.html for each in execution.results] == ["<table></table>"] * 2
    assert [each.is_main_result for each in execution.results] == [False, True]


async def check_exception() -> None:
    execution = await ran("def f(): return 1 / 0\nf()")
    assert execution.error.name == "ZeroDivisionError"
    assert "line 1" in execution.error.traceback


async def check_much_output() -> None:
    execution = await ran("import sys\nfor _ in range(100): sys.stdout.write('x' * 100_000)")
    assert len("".join(execution.logs.stdout)) == 10_000_000


async def check_contexts() -> None:
    context = await got(Made.sandbox.create_code_context, cwd="/tmp")
    assert (await ran("import os; os.getcwd()", context=context)).text == "'/tmp'"
    await ran("y = 7", context=context)
    assert (await ran("y")).error.name == "NameError"
    await got(Made.sandbox.restart_code_context, context)
    assert (await ran("y", context=context)).error.name == "NameError"
    assert context.id in [each.id for each in await got(Made.sandbox.list_code_contexts)]
    await got(Made.sandbox.remove_code_context, context)


async def check_languages_and_variables() -> None:
    assert "5\n" in "".join((await ran("a=2; echo $((a+3))", language="bash")).logs.stdout)
    assert (await ran("import os; os.environ['MINE']", envs={"MINE": "yes"})).text == "'yes'"


async def check_fifty_runs_keep_their_state() -> None:
    await ran("total = 0")
    for number in range(50):
        await ran(f"total += {number}")
    assert (await ran("total")).text == str(sum(range(50)))


async def check_disconnect_interrupts() -> None:
    """Within a second, when nothing else holds the machine up: the best of three."""
    took = []
    for code in ("while True: pass", "import time; time.sleep(600)", "while True: pass"):
        try:
            await ran(code, timeout=2)
        except e2b.TimeoutException:
            began = time.monotonic()
        assert (await ran("x + 1")).text == "21", "the context kept its variables"
        took.append(time.monotonic() - began)
    assert min(took) < 1, took


async def check_a_kernel_that_dies_is_reported() -> None:
    context = await got(Made.sandbox.create_code_context)
    await ran("y = 1", context=context)
    died = await ran("import os; os._exit(1)", context=context)
    assert died.error.name == "KernelDied", died
    assert (await ran("y", context=context)).error.name == "NameError", "another one took its place"
    assert (await ran("20 + 22", context=context)).text == "42"
    assert (await ran("x + 1")).text == "21", "other contexts live on"
    await got(Made.sandbox.remove_code_context, context)


async def check_the_end() -> None:
    assert await got(Made.sandbox.kill)


run(globals())

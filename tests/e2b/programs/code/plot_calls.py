"""A real plot and a real table by the code interpreter's SDK. ``plot_calls.py URL KEY sync|async FOLDER PLOT TABLE``.

It needs the template ``code`` with pandas and Matplotlib. What the code showed is written to files in FOLDER.
"""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path

URL, KEY, FORM, FOLDER, PLOT, TABLE = sys.argv[1:7]
os.environ.update(E2B_API_KEY=KEY, E2B_API_URL=URL, E2B_SANDBOX_URL=URL)

from checking import caller, run  # noqa: E402
from e2b_code_interpreter import AsyncSandbox, Sandbox  # noqa: E402

got = caller(FORM)
SDK = Sandbox if FORM == "sync" else AsyncSandbox


class Made:
    sandbox: Sandbox | AsyncSandbox


async def check_plot() -> None:
    Made.sandbox = await got(SDK.create, timeout=600)
    (result,) = (await got(Made.sandbox.run_code, PLOT, timeout=200)).results
    (Path(FOLDER) / "plot.png").write_bytes(base64.b64decode(result.png))
    assert not result.is_main_result


async def check_table() -> None:
    (result,) = (await got(Made.sandbox.run_code, TABLE, timeout=200)).results
    assert result.is_main_result
    (Path(FOLDER) / "table.html").write_text(result.html)
    (Path(FOLDER) / "table.txt").write_text(result.text)


async def check_the_end() -> None:
    assert await got(Made.sandbox.kill)


run(globals())

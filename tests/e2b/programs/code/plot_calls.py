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
from e2b_code_interpreter.charts import ChartType  # noqa: E402

got = caller(FORM)
SDK = Sandbox if FORM == "sync" else AsyncSandbox


class Made:
    sandbox: Sandbox | AsyncSandbox


async def check_plot() -> None:
    Made.sandbox = await got(SDK.create, timeout=600)
    (result,) = (await got(Made.sandbox.run_code, PLOT, timeout=200)).results
    (Path(FOLDER) / "plot.png").write_bytes(base64.b64decode(result.png))
    assert not result.is_main_result
    assert "chart" in result.formats()
    assert (result.chart.type, result.chart.title) == (ChartType.LINE, "Squares")
    (line,) = result.chart.elements
    assert line.points == [(0, 1), (1, 4), (2, 9)]


async def check_the_sdk_reads_charts() -> None:
    for code, kind in (
        ("plt.scatter([1], [2])", ChartType.SCATTER),
        ("plt.bar(['a'], [2])", ChartType.BAR),
        ("plt.pie([1, 2])", ChartType.PIE),
        ("plt.imshow([[1, 2]])", ChartType.UNKNOWN),
        ("figure, axes = plt.subplots(1, 2)\nfor each in axes: each.plot([1])", ChartType.SUPERCHART),
    ):
        (result,) = (await got(Made.sandbox.run_code, f"{code}\nplt.show()", timeout=200)).results
        assert result.png
        assert result.chart.type == kind


async def check_table() -> None:
    (result,) = (await got(Made.sandbox.run_code, TABLE, timeout=200)).results
    assert result.is_main_result
    assert result.data == {"n": [1, 2], "name": ["a", "b"]}
    (Path(FOLDER) / "table.html").write_text(result.html)
    (Path(FOLDER) / "table.txt").write_text(result.text)


async def check_the_end() -> None:
    assert await got(Made.sandbox.kill)


run(globals())

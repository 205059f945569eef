"""A real plot and a real table by the code interpreter's SDK. ``plot_calls.py URL KEY``; it needs pandas and Matplotlib."""

from __future__ import annotations

import asyncio
import base64
import os
import struct
import sys

URL, KEY = sys.argv[1:3]
os.environ.update(E2B_API_KEY=KEY, E2B_API_URL=URL, E2B_SANDBOX_URL=URL)

from checking import run  # noqa: E402
from e2b_code_interpreter import Sandbox  # noqa: E402

PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.title('Squares')\nplt.show()"
TABLE = "import pandas\npandas.DataFrame({'n': [1, 2], 'name': ['a', 'b']})"


class Made:
    sandbox: Sandbox


async def ran(code):
    return await asyncio.to_thread(Made.sandbox.run_code, code, timeout=120)


async def check_plot() -> None:
    Made.sandbox = await asyncio.to_thread(Sandbox.create, timeout=600)
    execution = await ran(PLOT)
    (result,) = execution.results
    picture = base64.b64decode(result.png)
    width, height = struct.unpack(">II", picture[16:24])
    assert (picture[:8], width > 300, height > 200) == (b"\x89PNG\r\n\x1a\n", True, True)
    # A line was drawn: an empty picture of this size has a fraction of it.
    assert len(picture) > 5_000


async def check_table() -> None:
    (result,) = (await ran(TABLE)).results
    assert result.is_main_result
    assert "<table" in result.html
    assert "<td>b</td>" in result.html
    assert "n name" in " ".join(result.text.split()), result.text


async def check_fifty_runs_keep_their_state() -> None:
    await ran("total = 0")
    for number in range(50):
        await ran(f"total += {number}")
    assert (await ran("total")).text == str(sum(range(50)))
    await asyncio.to_thread(Made.sandbox.kill)


run(globals())

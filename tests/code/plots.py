"""A plot and a table, what shows that they are right, and an image with kernels in which Python can make both."""

from __future__ import annotations

import io
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image

from sandlot.domain.code.events import CellData
from sandlot.domain.service import SandboxService
from tests.code.conftest import kernel_image, run

ROOT = Path(__file__).parents[2]
TAG = "sandlot-test/plots"
FORMS = ROOT / "images/code/ipython"
# As the shipped image has it, but for the packages.
DOCKERFILE = """
FROM {kernels}
COPY packages /usr/local/lib/python3.11/dist-packages
COPY ipython/ipython_kernel_config.py /etc/ipython/
COPY ipython/sandlot_forms.py /usr/local/lib/python3.11/dist-packages/
ENV MPLBACKEND=agg
"""

PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.title('Squares')\nplt.show()"
TABLE = "import pandas\npandas.DataFrame({'n': [1, 2], 'name': ['a', 'b']})"
SQUARES = {
    "type": "line",
    "title": "Squares",
    "elements": [{"label": "Line 0", "points": [[0, 1], [1, 4], [2, 9]]}],
}
COLUMNS = {"n": [1, 2], "name": ["a", "b"]}
# What code shows, and what its chart is at least.
CHARTS: dict[str, dict[str, Any]] = {
    "plt.scatter([1, 2, 3], [4, float('nan'), 6], label='p'); plt.xlabel('Time (s)'); plt.yscale('log')": {
        "type": "scatter",
        "elements": [{"label": "p", "points": [[1, 4], [3, 6]]}],
        "x_label": "Time (s)",
        "x_unit": "s",
        "y_scale": "log",
    },
    "plt.bar(['a', 'b'], [3, 5], label='g'); plt.ylabel('n [kg]')": {
        "type": "bar",
        "elements": [{"label": "a", "group": "g", "value": 3}, {"label": "b", "group": "g", "value": 5}],
        "x_label": None,
        "y_label": "n [kg]",
        "y_unit": "kg",
    },
    "plt.barh(['a', 'b'], [3, 5]); plt.xlabel('n')": {
        "type": "bar",
        "elements": [
            {"label": "a", "group": "Group 0", "value": 3},
            {"label": "b", "group": "Group 0", "value": 5},
        ],
        "x_label": None,
        "y_label": "n",
    },
    "pandas.DataFrame({'a': [1, 2], 'b': [3, 4], 'n': ['x', 'y']}).plot.bar(x='n')": {
        "type": "bar",
        "elements": [
            {"label": "x", "group": "a", "value": 1},
            {"label": "y", "group": "a", "value": 2},
            {"label": "x", "group": "b", "value": 3},
            {"label": "y", "group": "b", "value": 4},
        ],
    },
    "plt.pie([1, 3], labels=['x', 'y'])": {
        "type": "pie",
        "elements": [
            {"label": "x", "angle": 90, "radius": 1},
            {"label": "y", "angle": 270, "radius": 1},
        ],
    },
    "plt.plot(pandas.date_range('2024-01-30', periods=2), [1, 2])": {
        "type": "line",
        "elements": [{"label": "Line 0", "points": [["2024-01-30T00:00:00", 1], ["2024-01-31T00:00:00", 2]]}],
        "x_scale": "datetime",
    },
    "pandas.Series([1, 2], pandas.date_range('2024-01-30', periods=2)).plot()": {
        "type": "line",
        "elements": [{"label": "Line 0", "points": [["2024-01-30T00:00:00", 1], ["2024-01-31T00:00:00", 2]]}],
        "x_scale": "datetime",
    },
    "plt.boxplot([[1, 2, 3, 4], [2, 3, 9, 4]])": {"type": "unknown", "elements": []},
    "plt.imshow([[1, 2], [3, 4]]); plt.colorbar()": {"type": "unknown", "elements": []},
}
TWO_CHARTS = (
    "figure, (left, right) = plt.subplots(1, 2)\n"
    "figure.suptitle('Both'); left.plot([1, 2]); right.pie([1]); plt.show()"
)
WITHOUT_DATA = {
    "plt.plot(range(10_001)); plt.show()": "image/png",
    "plt.figure(); plt.show()": "text/plain",
    "pandas.DataFrame({'n': range(10_001)})": "text/html",
    "pandas.Series([1, 2])": "text/plain",
}
LINE_COLOUR = (31, 119, 180)  # Matplotlib's first


@cache
def plots_image() -> str:
    """Takes ten seconds, and three when it was built before. The shipped images with Debian's packages take minutes."""
    kernels = kernel_image()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "Dockerfile").write_text(DOCKERFILE.format(kernels=kernels))
        shutil.copytree(FORMS, Path(folder) / "ipython", ignore=shutil.ignore_patterns("__pycache__"))
        install = (
            f"{ROOT}/.venv/bin/uv pip install -q --require-hashes --python-version 3.11 --only-binary :all: "
            f"--link-mode copy --target {folder}/packages -r {ROOT}/requirements/plots.txt"
        )
        for command in (install, f"/usr/bin/docker build --tag {TAG} {folder}"):
            ran = subprocess.run(command.split(), capture_output=True, text=True, check=False, timeout=600)
            assert ran.returncode == 0, ran.stderr[-4000:]
    return TAG


def assert_shows_the_plot(png: bytes) -> None:
    """A line that rises from the left to the right, ever more steeply, and a title above it."""
    with Image.open(io.BytesIO(png), formats=["PNG"]) as picture:
        width, height = picture.size
        pixels = picture.convert("RGB").load()
    assert width > 300
    assert height > 200

    def line_at(part: float) -> float:
        """How high the line is there, as a part of the picture's height."""
        rows = [y for y in range(height) if close(pixels[int(part * width), y], LINE_COLOUR)]
        assert rows, f"no line at {part}"
        return 1 - sum(rows) / len(rows) / height

    left, middle, right = (line_at(part) for part in (0.2, 0.5, 0.8))
    assert 0.03 < middle - left < right - middle < 0.8, (left, middle, right)
    dark = [(x, y) for x in range(width) for y in range(height // 8) if close(pixels[x, y], (0, 0, 0))]
    assert len(dark) > 30, "no title"


def close(pixel: tuple[int, ...], colour: tuple[int, ...]) -> bool:
    return all(abs(have - want) < 60 for have, want in zip(pixel, colour, strict=True))


def assert_part(whole: dict[str, Any], part: dict[str, Any]) -> None:
    assert {name: whole.get(name) for name in part} == part, whole


async def assert_charts_and_tables(service: SandboxService, session_id: str) -> None:
    """Each is data too, in the forms of E2B's code interpreter."""

    async def shown(code: str) -> dict[str, Any]:
        ran = await run(service, session_id, code, timeout_s=200)
        assert ran.result.exit_code == 0, ran.events
        (*_, value) = ran.of(CellData)
        return dict(value.data)

    assert_part((await shown(PLOT))["e2b/chart"], SQUARES)
    assert (await shown(TABLE))["e2b/data"] == COLUMNS
    odd = (
        "pandas.DataFrame({'n': [1, None], 't': pandas.to_datetime(['2024-01-30', None]), 's': ['a', None]})"
    )
    assert (await shown(odd))["e2b/data"] == {
        "n": [1, None],
        "t": ["2024-01-30T00:00:00", None],
        "s": ["a", None],
    }
    for code, expected in CHARTS.items():
        assert_part((await shown(f"{code}; plt.show()"))["e2b/chart"], expected)
    both = (await shown(TWO_CHARTS))["e2b/chart"]
    assert (both["type"], both["title"]) == ("superchart", "Both")
    assert [each["type"] for each in both["elements"]] == ["line", "pie"]
    for code, kind in WITHOUT_DATA.items():
        form = await shown(code)
        assert kind in form, (code, form)
        assert not {"e2b/chart", "e2b/data"} & form.keys(), (code, form)
    assert (await shown("[name for name in globals() if 'sandlot' in name]"))["text/plain"] == "[]"


def assert_shows_the_table(html: str, text: str) -> None:
    flat = "".join(html.split())
    for part in ("<table", "<th>n</th>", "<th>name</th>", "<td>2</td>", "<td>b</td>"):
        assert part in flat, html
    assert "n name" in " ".join(text.split())

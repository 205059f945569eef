"""A plot and a table, what shows that they are right, and an image with kernels in which Python can make both."""

from __future__ import annotations

import io
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from PIL import Image

from tests.code.conftest import kernel_image

ROOT = Path(__file__).parents[2]
TAG = "sandlot-test/plots"
# Debian's Python does not look below /usr/local/lib/python3.11/site-packages.
DOCKERFILE = """
FROM {kernels}
COPY packages /usr/local/lib/python3.11/dist-packages
ENV MPLBACKEND=agg
"""

PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.title('Squares')\nplt.show()"
TABLE = "import pandas\npandas.DataFrame({'n': [1, 2], 'name': ['a', 'b']})"
LINE_COLOUR = (31, 119, 180)  # Matplotlib's first


@cache
def plots_image() -> str:
    """Takes ten seconds, and three when it was built before. The shipped images with Debian's packages take minutes."""
    kernels = kernel_image()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "Dockerfile").write_text(DOCKERFILE.format(kernels=kernels))
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


def assert_shows_the_table(html: str, text: str) -> None:
    flat = "".join(html.split())
    for part in ("<table", "<th>n</th>", "<th>name</th>", "<td>2</td>", "<td>b</td>"):
        assert part in flat, html
    assert "n name" in " ".join(text.split())

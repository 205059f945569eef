"""The page about code, and the recipe of an analysis: each Python block runs against a server and prints what is shown.

The server has the fake behind it, with what the pages' plots give. With the image ``sandlot/code``, also the real one.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot.domain.code.contexts import Language
from sandlot.domain.environment import Environment, Recipe
from sandlot.testing import CellReply, FakeService
from tests.docs.test_tutorial import ROOT, Block, blocks, matches
from tests.faults.rig import ServerProcess
from tests.service.served import served

IMAGE = "sandlot/code"
PNG = b"\x89PNG\r\n\x1a\n..."


PAGES = ["docs/howto/code.md", "docs/cookbook/analysis.md"]


def programs() -> list[Block]:
    found = [block for page in PAGES for block in blocks(ROOT / page) if block.language == "python"]
    assert len(found) >= 6
    assert all(block.expected for block in found)
    return found


def check(url: str, folder: Path) -> None:
    """Runs every block on top of the first one's imports."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("SANDLOT_")}
    for block in programs():
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", f"from sandlot import Client\n{block.text}"],
            cwd=folder,
            env={**mine, "SANDLOT_URL": url},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert matches(block.expected or "", done.stdout), done.stdout


@pytest.fixture
def fake_url() -> Iterator[str]:
    service = FakeService(recipes=[Recipe(Environment("code", IMAGE), contexts=(Language.PYTHON,))])
    cells = service.scripts.cells
    cells.add("plt.show()", lambda call: CellReply(displays=[{"image/png": PNG}]))
    cells.add("sales.plot", lambda call: CellReply(displays=[{"image/png": PNG}]))
    cells.add("sales['amount'].sum()", lambda call: CellReply("42"))
    cells.add("pd.read_csv", lambda call: CellReply())
    cells.add("for n in (1, 2)", lambda call: CellReply(stdout="1\n2\n"))
    urls: list[str] = []
    ready, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with served(service) as url:
            urls.append(url)
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(30)
    yield urls[0]
    stop.set()
    thread.join(30)


def test_every_block_on_the_fake(fake_url: str, tmp_path: Path) -> None:
    check(fake_url, tmp_path)
    assert (tmp_path / "plot.png").read_bytes() == PNG


@pytest.mark.docker
def test_every_block_in_the_image_with_kernels(tmp_path: Path) -> None:
    found = subprocess.run(["docker", "image", "inspect", IMAGE], capture_output=True, check=False)
    if found.returncode != 0 or not (ROOT / "registry/environments/code.yaml").exists():
        pytest.skip(f"the image {IMAGE} is not built")
    # Preparing such an image takes a while, once.
    server = ServerProcess(pool_size="1", queue_timeout_s="150")
    try:
        asyncio.run(server.start())
        check(server.url, tmp_path)
    finally:
        asyncio.run(server.clean())

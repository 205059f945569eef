"""The recipes of docs/cookbook are followed, block by block, and what they print is compared.

One server serves them all. What they name of the world outside (a model, a package index, an API) has a stand-in on
this machine, and nothing else of a page is changed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sandlot import Client
from tests.btrfs_storage import btrfs_storage
from tests.docs import stand_ins
from tests.docs.test_tutorial import ROOT, Block, blocks, run_block
from tests.faults.rig import ServerProcess

COOKBOOK = ROOT / "docs/cookbook"
# Followed by tests of their own: one needs kernels, one is a fleet.
ELSEWHERE = {"README.md", "analysis.md", "fleet.md"}
PAGES = sorted(path.name for path in COOKBOOK.glob("*.md") if path.name not in ELSEWHERE)
KEY = "the-key-of-the-cookbook-0123456789"
E2B = ROOT / ".venv-e2b/bin/python"

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass
class Kitchen:
    server: ServerProcess
    outside: stand_ins.Outside

    def adapted(self, block: Block) -> Block:
        text = block.text
        for named, stand_in in self.outside.replacements.items():
            text = text.replace(named, stand_in)
        if stand_ins.MODEL in text:
            text = stand_ins.SCRIPT + text.replace(stand_ins.MODEL, "Scripted()")
        return replace(block, text=text.replace("python3 program.py", f"{E2B} program.py"))

    def environ(self, folder: Path) -> dict[str, str]:
        mine = {
            name: value for name, value in os.environ.items() if not name.startswith(("SANDLOT_", "E2B_"))
        }
        return {
            **mine,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "SANDLOT_URL": self.server.url,
            "SANDLOT_API_KEY": KEY,
            "SANDLOT_DATA_DIR": str(self.server.data_dir),
            "SANDLOT_REGISTRY_DIR": self.server.environ["SANDLOT_REGISTRY_DIR"],
        }


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kitchen]:
    registry = tmp_path_factory.mktemp("registry")
    (registry / "environments").mkdir()
    with stand_ins.outside(tmp_path_factory.mktemp("outside")) as outside, btrfs_storage() as storage:
        server = ServerProcess(
            api_key=KEY,
            registry=registry,
            storage_dir=str(storage),
            workspace_store="btrfs",
            pool_size="4",
            max_pool_size="6",
            egress_allow="127.0.0.0/8",
            egress_ceiling="any",
        )
        server.environ["SSL_CERT_FILE"] = str(outside.authorities)
        try:
            asyncio.run(server.start())
            yield Kitchen(server, outside)
        finally:
            asyncio.run(server.clean())


@pytest.mark.parametrize("page", PAGES)
def test_recipe(page: str, kitchen: Kitchen, tmp_path: Path) -> None:
    try:
        for block in blocks(COOKBOOK / page):
            run_block(kitchen.adapted(block), tmp_path, kitchen.environ(tmp_path))
    finally:
        with Client(kitchen.server.url, api_key=KEY) as client:
            for session in client.sessions():
                session.delete()


# Pages whose Python goes on with a client and a session.
FRAGMENTS = ["howto/artifacts.md", "howto/previews.md", "howto/recordings.md"]
BEGIN = "from sandlot import Client\nmine = Client()\nclient, begun = mine, mine.create()\nsession = begun\n"
END = "\nbegun.delete()\nmine.close()\n"


@pytest.mark.parametrize("page", FRAGMENTS)
def test_fragments(page: str, kitchen: Kitchen, tmp_path: Path) -> None:
    found = [block for block in blocks(ROOT / "docs" / page) if block.language == "python"]
    assert found
    for block in found:
        run_block(
            replace(block, text=BEGIN + block.text + END, expected=None), tmp_path, kitchen.environ(tmp_path)
        )


def test_the_index_has_every_recipe() -> None:
    index = (COOKBOOK / "README.md").read_text()
    found = {path.name for path in COOKBOOK.glob("*.md")} - {"README.md"}
    assert len(found) >= 10
    assert [name for name in sorted(found) if f"]({name})" not in index] == []
    assert all(
        block.expected for name in found for block in blocks(COOKBOOK / name) if block.language == "python"
    )

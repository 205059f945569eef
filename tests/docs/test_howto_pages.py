"""Every bash and Python block of these pages is run, in order, and what is shown as its output is compared.

One page builds an image from a public registry and a package index, neither of which the tests can reach. In its place
one is built from what the machine has, with just as much of the package as the page uses; nothing else is changed.
"""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.docs.test_tutorial import ROOT, Block, blocks, follow

PAGES = ["howto/custom-image.md", "howto/local-mode.md"]
RUN = ("bash", "python")  # other languages show what a file contains or how it changes

IMAGE = "my-pandas:1"
PUBLIC = "FROM python:3.12-slim\nRUN pip install --no-cache-dir pandas\n"
STAND_IN = r"""FROM sandlot/base
RUN mkdir /usr/lib/python3/dist-packages/pandas \
    && printf 'class Series(list):\n    def sum(self):\n        return sum(self)\n' \
        > /usr/lib/python3/dist-packages/pandas/__init__.py
"""

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(600)]


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False).stdout.strip()


@pytest.fixture
def image() -> Iterator[str]:
    """A name for what a page builds; it and what was prepared from it are gone after the test."""
    name = f"sandlot-test:{secrets.token_hex(8)}"
    yield name
    if image_id := docker("image", "inspect", "--format", "{{.Id}}", name):
        prepared = docker("image", "ls", "--quiet", "--filter", f"label=sandlot.prepared-from={image_id}")
        docker("image", "rm", "--force", *prepared.split(), name)


def here(block: Block, image: str) -> Block:
    return replace(block, text=block.text.replace(PUBLIC, STAND_IN).replace(IMAGE, image))


@pytest.mark.parametrize("page", PAGES)
def test_every_block(page: str, image: str, workplace: tuple[Path, dict[str, str]]) -> None:
    """What installs is left out: test_package.py does the same."""
    found = [here(block, image) for block in blocks(ROOT / "docs" / page)]
    follow([block for block in found if block.language in RUN and block.role != "install"], *workplace)


@pytest.mark.parametrize("page", PAGES)
def test_the_pages_have_blocks_and_outputs(page: str) -> None:
    found = [block for block in blocks(ROOT / "docs" / page) if block.language in RUN]
    assert len(found) >= 4
    assert any(block.expected for block in found)


def test_the_public_image_is_replaced() -> None:
    text = "".join(block.text for block in blocks(ROOT / "docs" / PAGES[0]))
    assert text.count(PUBLIC) == 1
    assert IMAGE in text

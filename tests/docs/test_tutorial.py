"""Every block of the tutorial is run, in order, by one bash, against a server that the tutorial itself starts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# scripts/release follows the tutorial with what an installation of the wheel has.
PYTHON = os.environ.get("TUTORIAL_PYTHON", sys.executable)
TUTORIAL = ROOT / "docs" / "tutorial" / "first-steps.md"
BLOCK = re.compile(r"^```(\w+)( \w+)?\n(.*?)^```", re.MULTILINE | re.DOTALL)

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass
class Block:
    language: str
    role: str
    text: str
    expected: str | None = None


def blocks(page: Path = TUTORIAL) -> list[Block]:
    found: list[Block] = []
    for language, role, text in BLOCK.findall(page.read_text()):
        if language == "text":
            found[-1].expected = text
        else:
            found.append(Block(language, role.strip(), text))
    return found


def matches(expected: str, printed: str) -> bool:
    """`…` stands for anything, within a line or as a line of its own."""
    printed = printed.replace("\r\n", "\n")
    lines = ("(?:.*\n)*?" if line == "…" else _pattern(line) + "\n" for line in expected.strip().splitlines())
    pattern = "".join(lines).removesuffix("\n")
    return re.search(pattern, printed) is not None


def _pattern(line: str) -> str:
    return ".*?".join(re.escape(part) for part in line.split("…"))


def run_block(block: Block, folder: Path, environ: dict[str, str]) -> None:
    """In this folder, where it leaves the variable that the next block may need; its output is compared."""
    variables = folder / "variables"
    variables.touch()
    if block.language == "python":
        command = [PYTHON, "-c", block.text]
    else:
        # One shell for the reader, several for the test: what a block sets is there for the next.
        script = f"set -eo pipefail; . {variables}; {block.text}\ndeclare -p SESSION >{variables} 2>&1 || :>{variables}"
        command = ["bash", "-c", script]
    ran = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, f"{block.text}\n{ran.stdout}\n{ran.stderr}"
    if block.expected is not None:
        assert matches(block.expected, ran.stdout), f"{block.text}\nprinted\n{ran.stdout}{ran.stderr}"


def wait_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 90
    while True:
        assert server.poll() is None, "the server ended"
        try:
            with urllib.request.urlopen(f"{url}/ready"):
                return
        except OSError:
            assert time.monotonic() < deadline, "the server does not become ready"
            time.sleep(0.1)


def follow(found: list[Block], folder: Path, environ: dict[str, str]) -> None:
    """Run the blocks of a page. The one that is a server serves until the last of them has ended."""
    server: subprocess.Popen[bytes] | None = None
    try:
        for block in found:
            if block.role == "server":
                server = subprocess.Popen(
                    ["bash", "-c", f"exec {block.text.strip()}"],
                    cwd=folder,
                    env=environ,
                    stderr=subprocess.DEVNULL,
                )
                wait_ready(environ["SANDLOT_URL"], server)
                continue
            run_block(block, folder, environ)
    finally:
        if server is not None:
            server.send_signal(signal.SIGTERM)
            server.wait(90)


def test_every_block(workplace: tuple[Path, dict[str, str]]) -> None:
    """The install block is what test_package.py does; the others run here as they stand."""
    found = blocks()
    assert len(found) >= 9
    assert all("pip install" in block.text for block in found if block.role == "install")
    follow([block for block in found if block.role != "install"], *workplace)


def test_the_comparison_can_fail() -> None:
    assert matches("a\n…\nc\n", "a\nb\nb\nc\n")
    assert matches("…x…", "1x2")
    assert not matches("a\nb\n", "a\nc\n")

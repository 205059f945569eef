"""The recipe of a fleet is followed in one shell, as its reader does: Redis, two workers and a coordinator."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.docs.test_tutorial import ROOT, blocks, matches
from tests.faults.rig import free_port

PAGE = ROOT / "docs/cookbook/fleet.md"
MARK = "----- the output of the next block"

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(300)]


def test_every_block() -> None:
    """With ports and names of the test's own, which other tests and workers do not have."""
    own = f"test-{secrets.token_hex(4)}"
    stand_ins = {
        "6390": str(free_port()),
        "9010": str(free_port()),
        "801$n": f"$(cut -d: -f$n <<<{free_port()}:{free_port()})",
        "--id w$n": f"--id {own}-$n",
        **{f"{before}w{n}": f"{before}{own}-{n}" for before in ("drain ", "in ", "  ") for n in "12"},
        f"{own}-1 w2;": f"{own}-1 {own}-2;",
    }

    def adapted(text: str) -> str:
        for named, stand_in in stand_ins.items():
            text = text.replace(named, stand_in)
        return text

    found = [block for block in blocks(PAGE) if block.language == "bash"]
    script = f"\necho '{MARK}'\n".join(adapted(block.text) for block in found)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SANDLOT_")}
    with tempfile.TemporaryDirectory(prefix="sandlot-test-") as folder:
        environ |= {"HOME": folder, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        with (Path(folder) / "printed").open("w") as stdout, (Path(folder) / "errors").open("w") as stderr:
            process = subprocess.Popen(
                ["bash", "-c", f"set -eo pipefail\n{script}"],
                cwd=folder,
                env=environ,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        try:
            process.wait(200)
        finally:
            # What a block that failed has left running.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)
            clean_up = adapted(found[-1].text).partition("wait\n")[2]
            subprocess.run(["bash", "-c", clean_up], cwd=folder, check=False, timeout=100)
        printed, errors = (Path(folder, name).read_text() for name in ("printed", "errors"))
    assert process.returncode == 0, errors
    outputs = printed.split(f"{MARK}\n")
    assert sum(block.expected is not None for block in found) == 2
    for block, output in zip(found, outputs, strict=True):
        if block.expected is not None:
            # In a terminal, columns have spaces between them.
            assert matches(adapted(block.expected), output.replace("\t", "  ")), printed + errors

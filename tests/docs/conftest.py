"""The pages about agents are tried against the same kind of server as the adapters themselves; pages that are followed
from their first block to their last have a folder and a worker of their own."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.test_tutorial import PYTHON
from tests.faults.rig import free_port
from tests.integrations.conftest import agent_server

__all__ = ["agent_server"]


@pytest.fixture
def workplace() -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder to follow a page in, and the environment of its commands: with a worker of their own."""
    folder = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    port = free_port()
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SANDLOT_")},
        "PATH": f"{Path(PYTHON).parent}:{os.environ['PATH']}",
        "SANDLOT_PORT": str(port),
        "SANDLOT_URL": f"http://127.0.0.1:{port}",
        "SANDLOT_WORKER_ID": f"test-{secrets.token_hex(4)}",
        "SANDLOT_DATA_DIR": str(folder / "data"),
        "HOME": str(folder),
    }
    yield folder, environ
    # A page that fails midway has not reached its own clean-up.
    mine = ["docker", "ps", "-aq", "--filter", f"label=sandlot.owner={environ['SANDLOT_WORKER_ID']}"]
    deadline = time.monotonic() + 90
    while containers := subprocess.run(mine, capture_output=True, text=True, check=True).stdout.split():
        assert time.monotonic() < deadline, f"{containers} cannot be removed"
        # Not every time: the engine may be removing it for the server that has just ended.
        subprocess.run(["docker", "rm", "-f", "--volumes", *containers], capture_output=True, check=False)
        time.sleep(0.2)
    shutil.rmtree(folder, ignore_errors=True)

"""Every example runs, and the README shows the first one as it is."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXPECTED = {
    "first_sandbox.py": "42\nAda in /tmp\ntimeout 'begun\\n'\n",
    "streaming.py": "step 1\nstep 2\nstep 3\nbuilt\n True\n",
    "fake_in_tests.py": "1 passed\n",
}


@pytest.mark.docker
@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_example_runs(name: str) -> None:
    with tempfile.TemporaryDirectory(prefix="sandlot-test-") as folder:
        environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SANDLOT_")},
            "SANDLOT_WORKER_ID": f"test-{secrets.token_hex(4)}",
            "SANDLOT_DATA_DIR": folder,
        }
        ran = subprocess.run(
            [sys.executable, str(ROOT / "examples" / name)],
            env=environ,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert (ran.returncode, ran.stdout) == (0, EXPECTED[name]), ran.stderr
    assert ran.stderr == ""


def test_readme_shows_the_first_example() -> None:
    readme = (ROOT / "README.md").read_text()
    blocks = [part.split("```")[0] for part in readme.split("```python\n")[1:]]
    assert (ROOT / "examples" / "first_sandbox.py").read_text() in blocks

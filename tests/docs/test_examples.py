"""Every example runs, and the README shows the first one as it is."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.docker.shipped import build_image

ROOT = Path(__file__).parents[2]
# What each of them prints, or how that ends.
EXPECTED = {
    "first_sandbox.py": "42\nAda in /tmp\ntimeout 'begun\\n'\n",
    "streaming.py": "step 1\nstep 2\nstep 3\nbuilt\n True\n",
    "fake_in_tests.py": "1 passed\n",
    "best_of_ten.py": "10 attempts; number 7 was the best, and is kept: True\n",
    "agents/coding_agent.py": "bash('ls')\nmean.py\nmean.py is still there: the sandbox belongs to this conversation.\n",
    "agents/data_analyst.py": "got plot.png image/png\nFebruary was the best month, with 95 sold.\n",
    "agents/human_approval.py": "rm -r build\nThe build folder is gone.\nleft: nothing\n",
    "agents/many_threads.py": "20 conversations, 20 sandboxes, 20 secrets\n",
}
# Those that need more than the images that every machine has.
IMAGES = {"agents/data_analyst.py": "data-science"}
NOT_PROGRAMS = {"agents/scripted.py"}  # what the agents share


@pytest.mark.docker
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.images] * (name in IMAGES)) for name in sorted(EXPECTED)]
)
def test_example_runs(name: str) -> None:
    if name in IMAGES:
        build_image(IMAGES[name])
    ran = run(name)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith(EXPECTED[name]), ran.stdout
    assert ran.stderr == ""


def run(name: str) -> subprocess.CompletedProcess[str]:
    """On Docker volumes, which every machine has."""
    with tempfile.TemporaryDirectory(prefix="sandlot-test-") as folder:
        environ = {
            **{
                name: value
                for name, value in os.environ.items()
                if name != "MODEL" and not name.startswith("SANDLOT_")
            },
            "SANDLOT_WORKER_ID": f"test-{secrets.token_hex(4)}",
            "SANDLOT_DATA_DIR": folder,
            "SANDLOT_STORAGE_DIR": str(Path(folder) / "none"),
        }
        return subprocess.run(
            [sys.executable, str(ROOT / "examples" / name)],
            env=environ,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )


def test_no_example_is_forgotten() -> None:
    examples = ROOT / "examples"
    found = {str(path.relative_to(examples)) for path in examples.rglob("*.py")}
    assert found == EXPECTED.keys() | NOT_PROGRAMS


def test_readme_shows_the_first_example() -> None:
    readme = (ROOT / "README.md").read_text()
    blocks = [part.split("```")[0] for part in readme.split("```python\n")[1:]]
    assert (ROOT / "examples" / "first_sandbox.py").read_text() in blocks

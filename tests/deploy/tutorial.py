"""Runs the tutorial's own blocks, as they stand, against the server of the environment, and shows them.

For scripts/fleet-compose: ``python -m tests.deploy.tutorial``. Its first part, about a server of one's own, is
left out. Exit code 1 if a block fails or prints something else than the page says.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.docs.test_tutorial import Block, blocks, matches

# What belongs to the machine that serves, and not to those who use it.
OF_THE_SERVER = ("sandlot images build", "sandlot doctor")


def concerns_us(block: Block) -> bool:
    return not block.role and not block.text.startswith(OF_THE_SERVER)


def main() -> int:
    environ = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory(prefix="sandlot-test-") as folder:
        # One shell for the reader, several here: what a block sets is there for the next.
        variables = Path(folder) / "variables"
        variables.touch()
        for block in filter(concerns_us, blocks()):
            if block.language == "python":
                command = [sys.executable, "-c", block.text]
                print("$ python3 - <<'END'\n" + block.text + "END", flush=True)
            else:
                keep = f"declare -p SESSION >{variables} 2>/dev/null || :"
                command = ["bash", "-eo", "pipefail", "-c", f". {variables}\n{block.text}\n{keep}"]
                print("\n".join(f"$ {line}" for line in block.text.splitlines()), flush=True)
            ran = subprocess.run(
                command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False
            )
            print(ran.stdout.replace("\r", ""), end="", flush=True)
            if ran.returncode != 0:
                print(f"exit code {ran.returncode}: {ran.stderr}")
                return 1
            if block.expected is not None and not matches(block.expected, ran.stdout):
                print(f"the tutorial promises instead:\n{block.expected}")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

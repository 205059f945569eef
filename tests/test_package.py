"""`pip install .` from a clone needs nothing but pip: the wheel carries the agent for both machines."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ELF_MACHINE = {"amd64": 62, "arm64": 183}


@pytest.mark.timeout(600)
def test_wheel_carries_the_agent(tmp_path: Path) -> None:
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--wheel-dir",
            str(tmp_path),
            str(ROOT),
        ],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        for arch, machine in ELF_MACHINE.items():
            program = archive.read(f"sandlot/providers/link/bin/sandlot-agent-{arch}")
            assert program[:4] == b"\x7fELF"
            assert int.from_bytes(program[18:20], "little") == machine
            assert b"/lib64/ld-linux" not in program, "the agent is static"
    assert "sandlot/py.typed" in names
    assert "sandlot/providers/docker/seccomp.toml" in names
    assert not [name for name in names if name.startswith(("tests/", "bench/"))]

"""S14: what development and CI install is locked by hash, wherever it comes from."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))


def requirements(lock: Path) -> list[str]:
    """Each with its hashes, on one line."""
    lines = lock.read_text().replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def test_s14_locks_are_there() -> None:
    assert [lock.name for lock in LOCKS] == [
        "dev.txt",
        "e2b-langchain.txt",
        "e2b-old.txt",
        "e2b.txt",
        "mcp1.txt",
        "otlp.txt",
        "plots.txt",
        "release.txt",
    ]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_s14_every_requirement_has_one_version_and_a_hash(lock: Path) -> None:
    found = requirements(lock)
    assert len(found) > 10
    locked = re.compile(
        r"[A-Za-z0-9._-]+(\[[a-z0-9,_-]+\])?==[^\s;]+( ; [^\\]+?)?(\s+--hash=sha256:[0-9a-f]{64})+"
    )
    assert [line[:80] for line in found if not locked.fullmatch(line.strip())] == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_s14_lock_names_no_registry(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    assert not re.search(
        r"^\s*(-i|-f|--(extra-)?index-url|--find-links|--trusted-host)\b", text, re.MULTILINE
    )


def test_s14_packages_from_npm_have_hashes() -> None:
    packages = json.loads((ROOT / "requirements/e2b-js/package-lock.json").read_text())["packages"]
    own = packages.pop("")
    assert set(own["dependencies"]) == {"e2b", "@e2b/code-interpreter"}
    assert len(packages) > 15
    assert [name for name, one in packages.items() if not one["integrity"].startswith("sha512-")] == []
    assert [name for name, one in packages.items() if "resolved" in one] == [], "the lock names no registry"


def test_s14_hashes_are_required_and_renewed() -> None:
    """But for the project itself, which is installed from its folder and brings nothing along."""
    rules = (ROOT / "Makefile").read_text()
    installs = re.findall(r"^.*pip install .*$", rules, re.MULTILINE)
    assert len(installs) == 6
    assert ["--require-hashes" in line or "--no-deps" in line for line in installs] == [True] * 6
    assert "--generate-hashes --no-emit-index-url" in rules


def test_s14_packages_of_the_servers_image_are_those_of_the_lock(tmp_path: Path) -> None:
    """All but ours, which is made there: a package of another content or name is told."""
    for folder in ("scripts", "requirements", "wheels", "bin"):
        (tmp_path / folder).mkdir()
    shutil.copy(ROOT / "scripts/fleet-images", tmp_path / "scripts")
    client = tmp_path / "bin/docker"  # which is looked for, and not asked for anything
    client.write_text("#!/bin/sh\nexit 1\n")
    client.chmod(0o755)
    wheels = {name: tmp_path / "wheels" / f"{name}-1.0-py3-none-any.whl" for name in ("a", "b", "sandlot")}
    for name, wheel in wheels.items():
        wheel.write_text(name)
    known = "".join(f" \\\n    --hash=sha256:{hashlib.sha256(name).hexdigest()}" for name in (b"a", b"b"))
    (tmp_path / "requirements/dev.txt").write_text(f"x==1.0{known}\n")

    def unlocked() -> list[str]:
        command = [str(tmp_path / "scripts/fleet-images"), "unlocked", str(tmp_path / "wheels")]
        env = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "HOME": str(tmp_path)}
        ran = subprocess.run(command, capture_output=True, text=True, check=True, env=env, timeout=60)
        return ran.stdout.split()

    assert unlocked() == []
    wheels["b"].write_text("another")
    assert unlocked() == [wheels["b"].name]
    collecting = (ROOT / "scripts/fleet-images").read_text().partition("collect_wheels() {")[2]
    assert 'unlocked "$folder/wheels"' in collecting.partition("touch")[0], "before they count as complete"

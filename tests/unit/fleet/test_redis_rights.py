"""What deploy/redis/users permits is what the scripts use: no command less, and none more."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FLEET = ROOT / "src/sandlot/fleet"
# What a connection and a script themselves need.
ALWAYS = {"ping", "select", "eval", "evalsha"}
OF_A_WORKER = (
    "join",
    "report",
    "leave",
    "record",
    "forget",
    "held",
    "find",
    "record_volumes",
    "forget_volume",
)


def used(paths: list[Path]) -> set[str]:
    text = "\n".join(path.read_text() for path in paths)
    return {name.lower() for name in re.findall(r"call\(\s*'([A-Z]+)'", text)}


def permitted(folder: Path, user: str) -> set[str]:
    users = ROOT / "deploy/redis/users"
    subprocess.run([users, folder, "w1"], check=True, capture_output=True)
    lines = (folder / "redis-users").read_text().splitlines()
    (line,) = [line for line in lines if line.split()[1] == user]
    return {word[1:] for word in line.split() if word.startswith("+")}


def test_a_coordinator(tmp_path: Path) -> None:
    assert permitted(tmp_path, "coordinator") == ALWAYS | used(sorted(FLEET.rglob("*.lua")))


def test_a_worker(tmp_path: Path) -> None:
    scripts = FLEET / "directory/scripts"
    keys = FLEET / "keys/scripts"
    paths = [scripts / f"{name}.lua" for name in (*OF_A_WORKER, "prelude")]
    paths += [keys / "changes.lua", keys / "prelude.lua", FLEET / "redis/gcra.lua"]
    paths += [FLEET / "webhooks/scripts/current.lua", FLEET / "webhooks/scripts/prelude.lua"]
    paths += [*(FLEET / "rates/scripts").glob("*.lua"), *(FLEET / "slots/scripts").glob("*.lua")]
    assert permitted(tmp_path, "w1") == ALWAYS | used(paths)


@pytest.mark.parametrize("user", ["coordinator", "w1"])
def test_nobody_may_do_what_is_dangerous(tmp_path: Path, user: str) -> None:
    dangerous = {
        "flushall",
        "flushdb",
        "config",
        "acl",
        "keys",
        "scan",
        "debug",
        "shutdown",
        "script",
        "@all",
    }
    assert not permitted(tmp_path, user) & dangerous

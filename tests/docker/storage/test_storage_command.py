"""``sandlot storage`` and what ``sandlot doctor`` says about it, as processes of their own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.docker.storage.conftest import Place
from tests.unit.cli.conftest import SANDLOT, environment

pytestmark = pytest.mark.slow


def sandlot(*arguments: str, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    ran = subprocess.run(
        [*SANDLOT, *arguments], capture_output=True, text=True, timeout=120, env=environment(**variables)
    )
    assert ran.returncode == code, (ran.stdout, ran.stderr)
    return ran


def init(place: Place, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    where = ("--path", str(place.storage.folder), "--fstab", str(place.fstab))
    return sandlot("storage", "init", *where, *arguments, code=code)


def status(place: Place) -> dict[str, Any]:
    where = ("--path", str(place.storage.folder), "--fstab", str(place.fstab))
    found: dict[str, Any] = json.loads(sandlot("storage", "status", *where, "--json").stdout)
    return found


def test_from_nothing_to_grown_storage(place: Place) -> None:
    assert status(place)["kind"] == "none"
    assert "Say how large it may grow: --size 50G" in init(place, code=1).stderr
    made = init(place, "--size", "300M")
    assert "Making a btrfs of 300 MiB" in made.stderr
    assert f"Set SANDLOT_STORAGE_DIR={place.storage.folder} for the worker." in made.stderr
    assert "Restart the worker" in made.stderr
    found = status(place)
    assert (found["kind"], found["quotas"], found["size"]) == ("loop file", "simple", 300 * 1024**2)
    assert (found["mounted"], found["boot_mount"], found["problems"]) == (True, True, [])
    again = init(place)
    assert "Making" not in again.stderr
    assert "Restart" not in again.stderr, "nothing has changed for the worker"
    assert "Growing" in init(place, "--size", "400m").stderr
    assert status(place)["size"] == 400 * 1024**2
    assert "cannot shrink" in init(place, "--size", "300m", code=1).stderr
    shown = sandlot("storage", "status", "--path", str(place.storage.folder), "--fstab", str(place.fstab))
    assert "mounted at boot  yes" in shown.stdout


def test_a_folder_on_btrfs_is_taken_as_it_is(place: Place) -> None:
    init(place, "--size", "300M")
    folder = str(place.storage.folder / "workspaces")
    refused = sandlot("storage", "init", "--path", folder, "--size", "1g", code=2)
    assert "Leave out --size" in refused.stderr
    sandlot("storage", "init", "--path", folder, "--fstab", str(place.fstab))
    found = json.loads(sandlot("storage", "status", "--path", folder, "--json").stdout)
    assert (found["kind"], found["file"], found["mounted"], found["problems"]) == ("btrfs", None, True, [])


@pytest.mark.parametrize("size", ["lots", "10x", ""])
def test_a_size_that_is_none(tmp_path: Path, size: str) -> None:
    arguments = ("--path", str(tmp_path / "storage"), "--fstab", str(tmp_path / "fstab"))
    ran = sandlot("storage", "init", *arguments, "--size", size, code=2)
    assert "50G" in ran.stderr
    assert [*tmp_path.iterdir()] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_only_root_sets_storage_up(tmp_path: Path) -> None:
    work = f"""
import os
from pathlib import Path
from sandlot.domain.errors import SandlotError
from sandlot.providers.docker.workspaces.choosing import look_at
from sandlot.providers.docker.workspaces.storage.loop_file import LoopFile, set_up
os.setuid(65534)
try:
    set_up(LoopFile(Path({str(tmp_path)!r}) / "storage"), 2**30, say=print)
except SandlotError as error:
    print(error.message)
print(look_at(Path("/")).problem)
"""
    ran = subprocess.run([SANDLOT[0], "-c", work], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.splitlines() == [
        "Only root can set up storage. Run it with sudo.",
        "the worker does not run as root, which mounts need",
    ]


@pytest.mark.docker
def test_doctor_says_which_store_it_is(place: Place, short_tmp: Path) -> None:
    def workspaces(code: int = 0, **variables: str) -> dict[str, Any]:
        folders = {"SANDLOT_STORAGE_DIR": str(place.storage.folder), "SANDLOT_DATA_DIR": str(short_tmp)}
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = str(listening.getsockname()[1])
        ran = sandlot("doctor", "--json", code=code, SANDLOT_PORT=port, **{**folders, **variables})
        checks = {check["name"]: check for check in json.loads(ran.stdout)["checks"]}
        found: dict[str, Any] = checks["workspaces"]
        return found

    found = workspaces()
    assert (found["status"], "storage init --size 50G" in found["fix"]) == ("warn", True)
    assert "in Docker volumes: no quotas, and snapshots are full copies" in found["message"]
    found = workspaces(code=1, SANDLOT_WORKSPACE_STORE="btrfs")
    assert found["status"] == "fail"
    assert found["fix"]
    init(place, "--size", "300M")
    found = workspaces(SANDLOT_WORKSPACE_STORE="btrfs")
    assert (found["status"], found["message"]) == (
        "ok",
        f"{place.storage.folder} is on btrfs with simple quotas",
    )
    place.unmount()
    found = workspaces()
    assert f"{place.storage.file} is not mounted" in found["message"]
    (short_tmp / "workspaces-on-btrfs").write_text(f"{place.storage.folder}\n")
    assert workspaces(code=1)["status"] == "fail"

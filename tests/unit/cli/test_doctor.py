from __future__ import annotations

import json
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.cli.conftest import SANDLOT, Served, environment

from sandlot.cli.doctor import checks
from sandlot.cli.doctor.checks import GIB, Status
from sandlot.cli.doctor.command import _data_dir_problem
from sandlot.config.registry.loading import load_registry
from sandlot.config.registry.recipes import RecipeDefaults
from sandlot.domain.capacity.machine import Machine, Overcommit
from sandlot.domain.environment import Tier
from sandlot.providers.docker.host.folder import MAX_SOCKET_PATH_BYTES
from sandlot.providers.link.link import SOCKET_NAME

pytestmark = pytest.mark.slow  # each case starts a process of its own

RECIPES = load_registry(defaults=RecipeDefaults()).recipes


def doctor(*, code: int, **variables: str) -> dict[str, dict[str, str]]:
    ran = subprocess.run(
        [*SANDLOT, "doctor", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(**variables),
    )
    assert ran.returncode == code, (ran.returncode, ran.stdout, ran.stderr)
    answer = json.loads(ran.stdout)
    assert answer["ok"] is (code == 0)
    return {check["name"]: check for check in answer["checks"]}


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return str(listening.getsockname()[1])


# --- on this machine --------------------------------------------------------------------------


@pytest.mark.docker
def test_this_machine_is_fit(short_tmp: Path) -> None:
    found = doctor(code=0, SANDLOT_PORT=free_port(), SANDLOT_DATA_DIR="/tmp/sandlot-test-doctor")
    assert found["engine"]["status"] == "ok"
    assert found["runtime runc"]["status"] == "ok"
    assert found["image sandlot/base"]["status"] == "ok"
    assert not Path("/tmp/sandlot-test-doctor").exists(), "it must change nothing"
    assert all(check["fix"] for check in found.values() if check["status"] != "ok")


@pytest.mark.docker
def test_people_read_it_too(short_tmp: Path) -> None:
    ran = subprocess.run(
        [*SANDLOT, "doctor"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(SANDLOT_PORT=free_port(), SANDLOT_DATA_DIR=str(short_tmp)),
    )
    assert ran.returncode == 0, ran.stderr
    assert "ok    engine: answers" in ran.stdout
    assert "\x1b" not in ran.stdout


def test_an_engine_that_is_not_there(short_tmp: Path) -> None:
    found = doctor(
        code=1,
        SANDLOT_PORT=free_port(),
        SANDLOT_DATA_DIR=str(short_tmp),
        DOCKER_HOST=f"unix://{short_tmp}/none",
    )
    assert found["engine"]["status"] == "fail"
    assert "docker" in found["engine"]["fix"].lower()


def test_a_port_that_is_taken(short_tmp: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        found = doctor(code=1, SANDLOT_PORT=str(listening.getsockname()[1]), SANDLOT_DATA_DIR=str(short_tmp))
    assert found["port"]["status"] == "fail"


@pytest.mark.docker
def test_a_port_that_is_ours(served: Served, short_tmp: Path) -> None:
    found = doctor(code=0, SANDLOT_PORT=served.url.rpartition(":")[2], SANDLOT_DATA_DIR=str(short_tmp))
    assert "Sandlot server" in found["port"]["message"]


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({"SANDLOT_HOST": "0.0.0.0"}, "settings"),
        ({"SANDLOT_REGISTRY_DIR": "/nowhere"}, "registry"),
        ({"SANDLOT_DATA_DIR": "/dev/null/none"}, "data folder"),
        ({"SANDLOT_DATA_DIR": "/tmp/" + "long" * 30}, "data folder"),
    ],
)
def test_what_is_set_wrong(variables: dict[str, str], name: str) -> None:
    found = doctor(code=1, **{"SANDLOT_PORT": free_port(), **variables})
    assert found[name]["status"] == "fail"
    assert found[name]["fix"]


def test_a_data_folder_as_long_as_a_worker_can_use() -> None:
    """A worker has its sockets in a folder below."""
    socket_path = f"/docker/s/{'0' * 16}/link/{SOCKET_NAME}"
    folder = "/tmp/".ljust(MAX_SOCKET_PATH_BYTES - len(socket_path), "x")
    assert _data_dir_problem(Path(folder)) is None
    assert "1 bytes too long" in str(_data_dir_problem(Path(folder + "x")))


def test_a_worker_of_a_fleet_needs_no_api_key(short_tmp: Path) -> None:
    found = doctor(
        code=1,
        SANDLOT_HOST="0.0.0.0",
        SANDLOT_PORT=free_port(),
        SANDLOT_DATA_DIR=str(short_tmp),
        SANDLOT_FLEET_PUBLIC_KEYS="k1:public." + "A" * 43,
        DOCKER_HOST=f"unix://{short_tmp}/none",
    )
    assert found["settings"]["status"] == "ok"
    assert [name for name, check in found.items() if check["status"] == "fail"] == ["engine"]


# --- what follows from what is seen -----------------------------------------------------------


@pytest.mark.parametrize(
    ("free", "status"),
    [(100 * GIB, Status.OK), (5 * GIB, Status.WARN), (GIB // 2, Status.FAIL), (None, Status.WARN)],
)
def test_disk(free: int | None, status: Status) -> None:
    assert checks.check_disk("/var/lib/docker", free).status is status


def test_room() -> None:
    """O9: as many as the worker lets in, and what there is least of."""
    base = RECIPES["base"]
    many = checks.check_capacity(Machine(16 * GIB, 4, 4_194_304), Overcommit(), base, 1000)
    assert many.status is Status.OK
    assert "enough for 45 base sessions. Memory: 16 GiB (overcommit 1.5), 45 fit." in many.message
    assert "Cores: 4 (overcommit 8), 64 fit." in many.message
    assert checks.check_capacity(Machine(16 * GIB, 4, 4_194_304), Overcommit(), base, 7).message.startswith(
        "enough for 7 "
    )
    little = checks.check_capacity(Machine(2 * GIB, 4, 4_194_304), Overcommit(1.0), base, 1000)
    assert little.status is Status.WARN
    assert "SANDLOT_OVERCOMMIT_MEMORY" in little.fix
    assert little.fix.endswith("or set SANDLOT_POOL_SIZE to at most 3.")
    none = checks.check_capacity(Machine(GIB // 4, 4, 4_194_304), Overcommit(1.0), base, 1000)
    assert none.fix.endswith("or lower the limits of environment base.")
    few = checks.check_capacity(Machine(64 * GIB, 16, 1024), Overcommit(), base, 1000)
    assert "kernel.pid_max" in few.fix
    small = replace(base, pool=replace(base.pool, size=1, min=0))
    assert (
        checks.check_capacity(Machine(2 * GIB, 4, 4_194_304), Overcommit(1.0), small, 1000).status
        is Status.OK
    )


def test_runtimes() -> None:
    tiers = [Tier.RUNC, Tier.RUNSC]
    missing = checks.check_runtimes({"Runtimes": {"runc": {}}}, tiers)
    assert [check.status for check in missing] == [Status.OK, Status.WARN]
    half = checks.check_runtimes(
        {"Runtimes": {"runc": {}, "runsc": {"runtimeArgs": ["--network=none"]}}}, tiers
    )
    assert half[1].status is Status.WARN
    whole = {"Runtimes": {"runc": {}, "runsc": {"runtimeArgs": ["--host-uds=open"]}}}
    assert {check.status for check in checks.check_runtimes(whole, tiers)} == {Status.OK}
    assert checks.check_runtimes({}, tiers)[0].status is Status.FAIL
    assert len(checks.check_runtimes({"Runtimes": {"runc": {}}}, [Tier.RUNC])) == 1


def test_kernel() -> None:
    good = {"CgroupVersion": "2", "SecurityOptions": ["name=seccomp,profile=builtin"]}
    assert {check.status for check in checks.check_kernel(good)} == {Status.OK}
    bad = checks.check_kernel({"CgroupVersion": "1", "SecurityOptions": []})
    assert [check.status for check in bad] == [Status.WARN, Status.FAIL]


def test_images() -> None:
    found = checks.check_images({"sandlot/base": None, "sandlot/slim": None}, RECIPES)
    assert [check.status for check in found] == [Status.FAIL, Status.WARN]
    assert found[0].fix == "Run `sandlot images build base`."
    (on_demand,) = checks.check_images({"sandlot/node": None}, RECIPES)
    assert on_demand.status is Status.OK
    assert on_demand.message == "not built; to use node, run `sandlot images build node`."
    (own,) = checks.check_images({"mine:1": None}, {"mine": replace(RECIPES["node"])})
    assert (own.status, own.fix) == (Status.WARN, "Run `docker pull mine:1`.")


def test_access() -> None:
    denied = checks.check_access("unix:///x", "no", denied=True, user="ada")
    assert denied.status is Status.FAIL
    assert "usermod -aG docker ada" in denied.fix
    assert checks.check_local("tcp://10.0.0.1:2375").status is Status.FAIL


def test_versions() -> None:
    assert checks.check_versions({"Version": "29.5.1"}, [])[0].status is Status.OK
    assert checks.check_versions({}, ["old"])[0].status is Status.WARN

"""What deploy/compose says, checked without starting it: who is reachable, who holds what, what is secret."""

from __future__ import annotations

import json
import os
import re
import ssl
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandlot.config.fleet_settings import CoordinatorFleetSettings, FleetSettings, WorkerFleetSettings
from sandlot.config.settings import ServerSettings, variables
from sandlot.fleet.signing_keys import MEMBER_AUDIENCE, PublicKeys, SigningKey
from tests.deploy.fronted import DOCKER, ROOT

COMPOSE = ROOT / "deploy/compose"
PLAIN = ("compose.yaml",)
SENTINEL = ("compose.yaml", "compose.sentinel.yaml")
WORKERS = ("worker1", "worker2", "worker3")
COORDINATORS = ("coordinator1", "coordinator2")
# Variables of compose.yaml that no member reads.
OF_COMPOSE = {
    "COMPOSE_PROJECT_NAME",
    "DOCKER_GID",
    "DOCKER_SOCKET",
    "GRAFANA_IMAGE",
    "GRAFANA_PUBLISH",
    "NGINX_IMAGE",
    "PROMETHEUS_IMAGE",
    "REDIS_IMAGE",
    "SANDLOT_DATA_ROOT",
    "SANDLOT_IMAGE",
    "SANDLOT_NET",
    "SANDLOT_PUBLISH",
    "SANDLOT_SECRETS",
}

pytestmark = pytest.mark.docker


def compose(made: Path, *arguments: str, files: tuple[str, ...] = PLAIN) -> subprocess.CompletedProcess[str]:
    given = [word for name in files for word in ("-f", str(COMPOSE / name))]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SANDLOT_")}
    return subprocess.run(
        [DOCKER, "compose", "--env-file", str(made / ".env"), *given, *arguments],
        capture_output=True,
        text=True,
        env=environ,
        timeout=150,
        check=False,
    )


@pytest.fixture(params=[PLAIN, SENTINEL], ids=["plain", "sentinel"])
def project(request: pytest.FixtureRequest, made: Path) -> dict[str, Any]:
    shown = compose(made, "config", "--format", "json", files=request.param)
    assert shown.returncode == 0, shown.stderr
    assert not shown.stderr, "a variable has no value, or a name has no meaning"
    parsed: dict[str, Any] = json.loads(shown.stdout)
    return parsed


def settings_variables() -> set[str]:
    return {
        name
        for kind in (ServerSettings, FleetSettings)
        for field in kind.model_fields
        for name in variables(field, kind)
    }


# What the project says itself, or what has no meaning in it.
OF_PROJECT = {
    "SANDLOT_ADVERTISE_URL",
    "SANDLOT_ALLOWED_HOSTS",
    "SANDLOT_API_KEY",
    "SANDLOT_API_KEY_FILE",
    "SANDLOT_DATA_DIR",
    "SANDLOT_DOCKER_HOST",
    "SANDLOT_E2B_BUILDS",  # not in a fleet
    "SANDLOT_DRAIN_TIMEOUT_S",  # shorter than stop_grace_period
    "SANDLOT_EXPECTED_WORKERS",
    "SANDLOT_FLEET_PRIVATE_KEY",
    "SANDLOT_FLEET_PRIVATE_KEY_FILE",
    "SANDLOT_FLEET_PUBLIC_KEYS",
    "SANDLOT_FLEET_PUBLIC_KEYS_FILE",
    "SANDLOT_HOST",
    "SANDLOT_LOG_FORMAT",
    "SANDLOT_PORT",
    "SANDLOT_REDIS_HOST",
    "SANDLOT_REDIS_PASSWORD",
    "SANDLOT_REDIS_PASSWORD_FILE",
    "SANDLOT_REDIS_PORT",
    "SANDLOT_REDIS_URL",
    "SANDLOT_REGISTRY_DIR",  # a folder, which has to be mounted
    "SANDLOT_SENTINELS",
    "SANDLOT_SENTINEL_NAME",
    "SANDLOT_SENTINEL_PASSWORD",
    "SANDLOT_SENTINEL_PASSWORD_FILE",
    "SANDLOT_STORAGE_DIR",  # a folder, which has to be mounted
    "SANDLOT_WORKER_ID",
}


def test_every_other_setting_in_env_reaches_a_member(made: Path, tmp_path: Path) -> None:
    asked = {name for name in settings_variables() if name.startswith("SANDLOT_")} - OF_PROJECT
    assert len(asked) > 15
    given = tmp_path / ".env"
    given.write_text((made / ".env").read_text() + "".join(f"{name}=given\n" for name in sorted(asked)))
    shown = compose(tmp_path, "config", "--format", "json")
    assert shown.returncode == 0, shown.stderr
    services = json.loads(shown.stdout)["services"]
    reached = {
        name
        for member in (*WORKERS, *COORDINATORS)
        for name, value in services[member]["environment"].items()
        if value == "given"
    }
    assert asked <= reached, asked - reached
    # What a coordinator says of environments is made from its own.
    for member in COORDINATORS:
        told = services[member]["environment"]
        assert told["SANDLOT_LIFETIME_S"] == told["SANDLOT_IDLE_TIMEOUT_S"] == "given"


# --- who is reachable, who holds what --------------------------------------------------------------


def test_only_nginx_has_a_port_on_the_host(project: dict[str, Any]) -> None:
    published = {name for name, service in project["services"].items() if service.get("ports")}
    assert published == {"nginx"}
    (port,) = project["services"]["nginx"]["ports"]
    assert port["host_ip"] == "127.0.0.1", "beyond this machine only when somebody says so"


def test_there_is_no_way_out_behind_nginx(project: dict[str, Any]) -> None:
    inner = {name for name, network in project["networks"].items() if network.get("internal")}
    for name, service in project["services"].items():
        if name not in ("nginx", "prepare"):
            assert set(service["networks"]) <= inner, name
    assert set(project["services"]["nginx"]["networks"]) == {"edge", "front"}
    assert "fleet" not in project["services"]["nginx"]["networks"], "nginx cannot reach workers or Redis"
    assert project["services"]["prepare"]["network_mode"] == "none"


def test_the_engine_is_the_workers_alone(project: dict[str, Any]) -> None:
    holders = {
        name
        for name, service in project["services"].items()
        if any(volume["target"].endswith("docker.sock") for volume in service.get("volumes", ()))
    }
    assert holders == set(WORKERS)


def test_a_workers_data_has_one_path_here_and_inside(project: dict[str, Any]) -> None:
    """The engine mounts the sandboxes' sockets and their agent from there, by the path that the worker says."""
    folders = set()
    for name in WORKERS:
        service = project["services"][name]
        folder = service["environment"]["SANDLOT_DATA_DIR"]
        assert {"source": folder, "target": folder} in [
            {"source": volume["source"], "target": volume["target"]} for volume in service["volumes"]
        ]
        assert f"/data/{Path(folder).name}" in project["services"]["prepare"]["command"]
        assert service["environment"]["TMPDIR"].startswith(folder + "/"), "/tmp is memory"
        folders.add(folder)
    assert len(folders) == len(WORKERS)


def test_workers_have_names_of_their_own(project: dict[str, Any]) -> None:
    for variable in ("SANDLOT_WORKER_ID", "SANDLOT_ADVERTISE_URL"):
        assert len({project["services"][name]["environment"][variable] for name in WORKERS}) == len(WORKERS)
    expected = project["services"]["coordinator1"]["environment"]["WORKERS"].split(",")
    assert expected == [project["services"][name]["environment"]["SANDLOT_ADVERTISE_URL"] for name in WORKERS]


def test_everybody_is_confined_and_bounded(project: dict[str, Any]) -> None:
    for name, service in project["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["pids_limit"] == 512, name
        assert service["logging"]["options"]["max-size"], name
        if name == "prepare":
            assert service["restart"] == "no"
            continue
        assert "cap_add" not in service, name
        assert service["restart"] == "unless-stopped", name
        assert int(service["mem_limit"]) > 0, name
        assert service["healthcheck"]["test"], name


def test_secrets_go_to_those_who_need_them(project: dict[str, Any]) -> None:
    given = {
        name: {secret["source"] for secret in service.get("secrets", ())}
        for name, service in project["services"].items()
    }
    assert given["nginx"] == {"tls-certificate", "tls-key"}
    assert given["prepare"] == set()
    for name in WORKERS:
        assert given[name] == {"fleet-public-keys", f"redis-{name}", "worker-metrics-key"}, (
            "a worker takes no user's key, and signs nothing"
        )
    for name in COORDINATORS:
        assert given[name] == {"api-key", "fleet-private-key", "redis-coordinator"}
    for name, service in project["services"].items():
        if service["image"].startswith("redis"):
            assert given[name] == {"redis-auth", "redis-users"}


def test_each_member_is_a_user_of_its_own_in_redis(project: dict[str, Any], made: Path) -> None:
    users = {line.split()[1]: line for line in (made / "secrets/redis-users").read_text().splitlines()}
    assert users.keys() == {"default", "admin", "coordinator", *WORKERS}
    for name in (*WORKERS, *COORDINATORS):
        told = project["services"][name]["environment"]
        user = name if name in WORKERS else "coordinator"
        assert told["SANDLOT_REDIS_URL"] == f"redis://{user}@redis:6379/0"
        assert told["SANDLOT_REDIS_PASSWORD_FILE"] == f"/run/secrets/redis-{user}"
    for name in WORKERS:
        # What the worker calls itself is what its user may write.
        own = project["services"][name]["environment"]["SANDLOT_WORKER_ID"]
        assert f"~sandlot:{{*}}:w:*-{name} " in users[name]
        assert own.endswith(f"-{name}")


# --- names ----------------------------------------------------------------------------------------------


def test_every_variable_means_something(project: dict[str, Any]) -> None:
    known = settings_variables()
    for name in (*WORKERS, *COORDINATORS):
        assert set(project["services"][name]["environment"]) - {"TMPDIR"} <= known
    for file in SENTINEL:
        used = set(re.findall(r"\$\{([A-Z_]+)", (COMPOSE / file).read_text()))
        assert used <= known | OF_COMPOSE, f"{file} names a variable that nobody reads"


def test_members_of_one_fleet_are_told_the_same(project: dict[str, Any]) -> None:
    shared = [
        name
        for name in FleetSettings.model_fields
        if name not in ("advertise_url", "expected_workers", "direct")
        and not name.startswith(("fleet_", "redis_"))  # each has its own keys and its own user
    ]
    names = {variable for field in shared for variable in variables(field, FleetSettings)}
    told = [
        {key: value for key, value in project["services"][name]["environment"].items() if key in names}
        for name in (*WORKERS, *COORDINATORS)
    ]
    assert len(told[0]) >= 3
    assert all(one == told[0] for one in told)


def test_images_are_public_ones_of_no_particular_registry(project: dict[str, Any]) -> None:
    images = {service["image"] for service in project["services"].values()}
    assert images == {"sandlot/server", "nginx:1.28", "redis:7.4-bookworm"}


# --- what is secret -----------------------------------------------------------------------------------------


def test_setup_makes_everything_once_and_never_the_same(made: Path, tmp_path: Path) -> None:
    def contents(folder: Path) -> dict[str, bytes]:
        return {
            str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()
        }

    setup = [str(COMPOSE / "setup"), str(tmp_path)]
    subprocess.run(setup, check=True, capture_output=True)
    first = contents(tmp_path)
    assert first.keys() == contents(made).keys()
    subprocess.run(setup, check=True, capture_output=True)
    assert contents(tmp_path) == first, "what is there is kept"
    assert not [name for name, content in contents(made).items() if content == first[name]]
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600
    assert not (tmp_path / "secrets/ca-key").exists()


def test_setup_after_version_0_2(tmp_path: Path) -> None:
    """Its secrets are left to the operator. What members and Redis read now is made beside them."""
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    old = {
        "fleet-keys": "k1:" + "5" * 64,
        "redis-password": "word",
        "redis-auth": "requirepass word\nmasterauth word",
    }
    for name, text in old.items():
        (secrets / name).write_text(text + "\n")
    ran = subprocess.run([COMPOSE / "setup", tmp_path], check=True, capture_output=True, text=True)
    assert "secrets/fleet-keys is of version 0.2" in ran.stdout
    assert "requirepass" not in (secrets / "redis-auth").read_text()
    assert (secrets / "redis-admin").read_text().strip() in (secrets / "redis-auth").read_text()


def test_the_keys_are_ones_that_members_take(made: Path) -> None:
    signing = CoordinatorFleetSettings(fleet_private_key_file=made / "secrets/fleet-private-key")
    verifying = WorkerFleetSettings(fleet_public_keys_file=made / "secrets/fleet-public-keys")
    token = SigningKey.parse(signing.private_key).sign({"aud": MEMBER_AUDIENCE, "sub": "w1", "exp": 1})
    assert PublicKeys.parse(verifying.public_keys).verified(token.encode()) == {
        "aud": MEMBER_AUDIENCE,
        "sub": "w1",
        "exp": 1,
    }
    assert ServerSettings(host="0.0.0.0", api_key_file=made / "secrets/api-key").key


def test_the_certificate_is_for_localhost_and_trusted_by_its_authority(made: Path) -> None:
    checked = subprocess.run(
        [
            *("openssl", "verify", "-CAfile", made / "secrets/ca.pem", "-verify_hostname", "localhost"),
            made / "secrets/tls-certificate",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
    ssl.create_default_context(cafile=str(made / "secrets/ca.pem"))


def deployed() -> Iterator[Path]:
    """What of deploy/ is or may be committed."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "deploy", "scripts"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return (ROOT / line for line in listed.stdout.splitlines())


def test_the_repository_holds_no_secret() -> None:
    files = [path for path in deployed() if path.is_file()]
    assert COMPOSE / "compose.yaml" in files
    for path in files:
        text = path.read_text()
        assert "PRIVATE KEY" not in text, path
        assert not re.search(r"\b[0-9a-f]{32,}\b", text), f"{path} holds what looks like a key"
        assert path.name != ".env"
        assert "secrets" not in path.parts
    ignored = ["git", "check-ignore", "deploy/compose/.env", "deploy/compose/secrets/api-key"]
    assert subprocess.run(ignored, cwd=ROOT, capture_output=True, check=False).returncode == 0


def test_nothing_starts_without_setup(tmp_path: Path) -> None:
    (tmp_path / ".env").touch()
    refused = compose(tmp_path, "config")
    assert refused.returncode != 0
    assert "run deploy/compose/setup first" in refused.stderr


def test_purge_asks_first(made: Path) -> None:
    asked = subprocess.run([COMPOSE / "purge", made], capture_output=True, text=True, check=False)
    assert asked.returncode == 2
    assert "sandlot-worker3" in asked.stderr

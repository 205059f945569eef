"""What deploy/ has for machines of one's own: units, nginx, Redis. That they parse, agree with each other and with the
settings, and that the Redis is one that workers join."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sandlot.config.settings import ServerSettings
from sandlot.fleet.directory.contract import WorkerCard
from sandlot.fleet.directory.redis_directory import RedisDirectory
from sandlot.testing.directory_suite.redis_server import redis_server
from tests.deploy.fronted import DOCKER, ROOT
from tests.deploy.test_compose import settings_variables

SYSTEMD = ROOT / "deploy/systemd"
UNITS = sorted(path.name for path in SYSTEMD.glob("*.service"))
NGINX = ROOT / "deploy/nginx"


# --- units --------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here")
@pytest.mark.parametrize("unit", UNITS)
def test_units_are_ones_that_systemd_understands(unit: str, tmp_path: Path) -> None:
    # It also asks whether the program is there.
    sandlot = str(Path(sys.executable).with_name("sandlot"))
    (tmp_path / unit).write_text((SYSTEMD / unit).read_text().replace("/opt/sandlot/bin/sandlot", sandlot))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", str(tmp_path / unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
    assert unit not in checked.stderr, checked.stderr


def lines(unit: str) -> set[str]:
    return {line for line in (SYSTEMD / unit).read_text().splitlines() if line and not line.startswith("#")}


@pytest.mark.parametrize("unit", ["sandlot-worker.service", "sandlot-coordinator.service"])
def test_members_are_confined_as_the_single_server_is(unit: str) -> None:
    whole = (SYSTEMD / "sandlot.service").read_text()
    hardening = set(whole[whole.index("NoNewPrivileges") : whole.index("[Install]")].split("\n")) - {""}
    assert len(hardening) > 15
    assert hardening <= lines(unit)


@pytest.mark.parametrize("unit", ["sandlot.service", "sandlot-worker.service"])
def test_the_engines_stop_is_not_the_servers_end(unit: str) -> None:
    """Sandboxes outlive an engine with live-restore; nobody starts again what systemd stopped along with it."""
    assert not any(line.startswith(("Requires=", "BindsTo=", "PartOf=")) for line in lines(unit))
    assert "StartLimitIntervalSec=0" in lines(unit)


def test_the_coordinator_has_no_engine() -> None:
    text = (SYSTEMD / "sandlot-coordinator.service").read_text()
    assert "SupplementaryGroups" not in text
    assert "docker.service" not in text


@pytest.mark.parametrize("unit", UNITS)
def test_units_start_commands_that_exist_and_name_variables_that_mean_something(unit: str) -> None:
    text = (SYSTEMD / unit).read_text()
    (command,) = re.findall(r"^ExecStart=\S+ (\w+)$", text, re.MULTILINE)
    asked = subprocess.run(
        [sys.executable, "-m", "sandlot", command, "--help"], capture_output=True, check=False
    )
    assert asked.returncode == 0
    assert "ExecReload=/bin/kill -HUP $MAINPID" in text.splitlines()
    assert set(re.findall(r"SANDLOT_[A-Z_]+", text)) <= settings_variables()


# --- nginx ----------------------------------------------------------------------------------------------------


@pytest.mark.docker
def test_nginx_takes_its_configuration(made: Path, nginx_image: str) -> None:
    parts = ("http.conf", "server.conf", "previews.conf")
    tls = [
        ("tls-certificate", "fullchain.pem"),
        ("tls-key", "privkey.pem"),
        ("tls-certificate", "preview-fullchain.pem"),
        ("tls-key", "preview-privkey.pem"),
    ]
    command = [
        *(DOCKER, "run", "--rm", "--network", "none", "--tmpfs", "/run"),
        *(f"--volume={NGINX}/{name}:/etc/nginx/sandlot/{name}:ro" for name in parts),
        f"--volume={NGINX}/nginx.conf:/etc/nginx/nginx.conf:ro",
        *(f"--volume={made}/secrets/{name}:/etc/ssl/sandlot/{there}:ro" for name, there in tls),
        *("--entrypoint", "nginx", nginx_image, "-t"),
    ]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "[warn]" not in checked.stderr, checked.stderr


def number(name: str, text: str) -> int:
    (found,) = set(re.findall(rf"^\s*{name} (\d+)[sm]?;", text, re.MULTILINE))
    return int(found)


@pytest.mark.parametrize("part", ["server.conf", "previews.conf"])
def test_nginx_waits_longer_and_takes_more_than_what_is_behind_it(part: str) -> None:
    server = (NGINX / part).read_text()
    defaults = ServerSettings()
    assert number("proxy_read_timeout", server) > defaults.max_exec_timeout_s
    assert number("client_max_body_size", server) * 1024**2 > defaults.max_upload_bytes


@pytest.mark.parametrize("file", ["deploy/nginx/nginx.conf", "deploy/compose/nginx.conf"])
def test_nginx_closes_idle_connections_before_a_coordinator_does(file: str) -> None:
    """Else a request may be sent into a connection that is being closed, and nobody can say whether it was read."""
    kept = ServerSettings.model_fields["keep_alive_s"].default
    assert number("keepalive_timeout", (ROOT / file).read_text()) < kept


# --- Redis ------------------------------------------------------------------------------------------------------


async def test_a_worker_joins_a_redis_with_this_configuration() -> None:
    with redis_server("--include", str(ROOT / "deploy/redis/redis.conf")) as server:
        directory = RedisDirectory.open(server.url, cell="deployed", deadline_s=20)
        lease = await directory.join(WorkerCard("w1", "http://w1", "1"), "token")
        assert lease.epoch == 1
        server.kill()
        server.start()
        # It was told to write everything down, and comes back with it.
        assert [status.ref.id for status in await directory.workers()] == ["w1"]
        await directory.close()


@pytest.mark.parametrize("unit", UNITS)
def test_a_server_that_hangs_is_started_again(unit: str) -> None:
    """O11: `sandlot.wiring.watchdog` tells systemd that it does not."""
    assert {"Type=notify", "WatchdogSec=60"} <= lines(unit)
    assert lines(unit) & {"Restart=always", "Restart=on-failure"}

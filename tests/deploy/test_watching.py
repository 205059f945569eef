"""What the profile observability adds to deploy/compose. scripts/fleet-compose starts its Prometheus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.fronted import ROOT
from tests.deploy.test_compose import COORDINATORS, WORKERS, compose

pytestmark = pytest.mark.docker


@pytest.fixture
def watched(made: Path) -> dict[str, Any]:
    """The services that the profile adds, with the networks."""
    shown = compose(made, "--profile", "observability", "config", "--format", "json")
    assert shown.returncode == 0, shown.stderr
    assert not shown.stderr
    parsed: dict[str, Any] = json.loads(shown.stdout)
    return parsed


def test_who_watches_is_confined_and_reaches_no_more_than_needed(watched: dict[str, Any]) -> None:
    services, networks = watched["services"], watched["networks"]
    prometheus, grafana = services["prometheus"], services["grafana"]
    for service in (prometheus, grafana):
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not service["user"].startswith("0:")
        assert int(service["mem_limit"]) > 0
        assert service["healthcheck"]["test"]
    assert set(prometheus["networks"]) == {"fleet", "watch"}
    assert not prometheus.get("ports"), "without a key, so not beyond Grafana"
    assert set(grafana["networks"]) == {"edge", "watch"}, "no member and no Redis"
    assert networks["watch"]["internal"] is True
    assert {port["host_ip"] for port in grafana["ports"]} == {"127.0.0.1"}
    assert {secret["source"] for secret in prometheus["secrets"]} == {"metrics-key", "worker-metrics-key"}
    assert {secret["source"] for secret in grafana["secrets"]} == {"grafana-admin"}


def test_prometheus_finds_its_files_and_every_member(watched: dict[str, Any]) -> None:
    service = watched["services"]["prometheus"]
    (config,) = (word.partition("=")[2] for word in service["command"] if word.startswith("--config.file="))
    told = yaml.safe_load((ROOT / "deploy/prometheus" / Path(config).name).read_text())
    mounted = {volume["target"]: volume["source"] for volume in service["volumes"]}
    assert Path(mounted[str(Path(config).parent)]) == ROOT / "deploy/prometheus"
    jobs = told["scrape_configs"]
    keys = {secret["target"] for secret in service["secrets"]}
    assert {job["authorization"]["credentials_file"] for job in jobs} == keys
    targets = {target for job in jobs for config in job["static_configs"] for target in config["targets"]}
    assert targets == {f"{name}:8000" for name in (*WORKERS, *COORDINATORS)}
    for name in told["rule_files"]:
        assert (ROOT / "deploy/prometheus" / name).is_file()


def test_grafana_finds_the_dashboard_and_prometheus(watched: dict[str, Any]) -> None:
    service = watched["services"]["grafana"]
    mounted = {volume["target"]: Path(volume["source"]) for volume in service["volumes"]}
    provisioning = mounted["/etc/grafana/provisioning"]
    (source,) = yaml.safe_load((provisioning / "datasources/sandlot.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards/sandlot.yaml").read_text())["providers"]
    dashboard = mounted[f"{provider['options']['path']}/sandlot.json"]
    variables = json.loads(dashboard.read_text())["templating"]["list"]
    assert ("datasource", source["type"]) in [(one["type"], one.get("query")) for one in variables]

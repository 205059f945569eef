"""The rules and the dashboard in ``deploy``: they name metrics that exist, and every alert says what to do."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from sandlot.domain.metrics.metric import Kind
from sandlot.domain.metrics.table import METRICS

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy/prometheus"
FILES = sorted(RULES.glob("*.rules.yml"))
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="needs promtool: scripts/engine installs it")


def exposed() -> set[str]:
    """The names under which Prometheus knows the metrics."""
    names = set()
    for metric in METRICS:
        if metric.kind is Kind.HISTOGRAM:
            names |= {f"{metric.name}_{part}" for part in ("bucket", "sum", "count")}
        else:
            names.add(metric.name)
    return names


def rules() -> list[dict[str, str]]:
    groups = [group for path in FILES for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def named_in(expression: str) -> set[str]:
    return set(re.findall(r"\bsandlot[_:][a-z0-9_:]+", expression))


RECORDED = {rule["record"] for rule in rules() if "record" in rule}
ALERTS = {rule["alert"] for rule in rules() if "alert" in rule}


def test_rules_name_metrics_that_exist() -> None:
    assert len(ALERTS) >= 15
    for rule in rules():
        assert named_in(rule["expr"]) <= exposed() | RECORDED, rule


def test_the_dashboard_names_metrics_that_exist() -> None:
    dashboard = json.loads((ROOT / "deploy/grafana/sandlot.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) > 15
    for expression in expressions:
        assert named_in(expression)
        assert named_in(expression) <= exposed() | RECORDED, expression


def test_every_alert_says_what_to_do() -> None:
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs/operations/alerts.md").read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(ALERTS)
    for rule in rules():
        if "alert" in rule:
            runbook = rule["annotations"]["runbook"]  # type: ignore[index]
            assert runbook == f"docs/operations/alerts.md#{rule['alert'].lower()}"  # type: ignore[index]


@needs_promtool
def test_promtool_accepts_the_rules_and_their_tests() -> None:
    assert PROMTOOL is not None
    for arguments in (
        ["check", "rules", *(path.name for path in FILES)],
        ["check", "config", "--syntax-only", "prometheus.yml", "prometheus-fleet.yml"],
        ["test", "rules", "rules_test.yml"],
    ):
        ran = subprocess.run([PROMTOOL, *arguments], cwd=RULES, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_alert_has_a_test_of_its_own() -> None:
    tested = set(re.findall(r"alertname: (\w+)", (RULES / "rules_test.yml").read_text()))
    assert tested == ALERTS

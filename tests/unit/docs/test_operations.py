"""What the pages for operators name exists: settings, metrics, tests. Figures are the measured ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from sandlot.config.fleet_settings import FleetSettings
from sandlot.config.settings import ServerSettings
from sandlot.config.variable_names import SHARED_KEYS
from sandlot.domain.capacity.machine import RESERVED_MEMORY_BYTES
from sandlot.domain.capacity.pool import PoolPolicy, target
from sandlot.domain.metrics.metric import Kind
from sandlot.domain.metrics.table import METRICS

ROOT = Path(__file__).parents[3]
OPERATIONS = ROOT / "docs/operations"
PAGES = sorted(
    [*OPERATIONS.glob("*.md"), ROOT / "docs/howto/fleet-operations.md", ROOT / "docs/howto/keys.md"]
)
CODE = re.compile(r"`([^`]+)`|^```\w*(?: \w+)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Read by the SDK and the command line, not by a server.
OF_CLIENTS = {"SANDLOT_URL", "SANDLOT_API_KEY"}
GIB = 1024**3


def code_of(page: Path) -> list[str]:
    return [inline or block for inline, block in CODE.findall(page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_settings_exist(page: Path) -> None:
    known = {
        f"SANDLOT_{name.upper()}" for kind in (ServerSettings, FleetSettings) for name in kind.model_fields
    }
    named = set(re.findall(r"SANDLOT_[A-Z_]+", page.read_text()))
    assert named <= known | set(SHARED_KEYS) | OF_CLIENTS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_metrics_exist(page: Path) -> None:
    rules = [
        rule["record"]
        for path in (ROOT / "deploy/prometheus").glob("*.rules.yml")
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
        if "record" in rule
    ]
    known = {metric.name for metric in METRICS} | set(rules)
    known |= {f"{metric.name}_bucket" for metric in METRICS if metric.kind is Kind.HISTOGRAM}
    named = {name for code in code_of(page) for name in re.findall(r"\bsandlot[_:][a-z0-9_:]+", code)}
    assert named <= known


def test_each_procedure_names_a_test_that_is_there() -> None:
    rows = re.findall(r"^\| .* \| (`tests/.*) \|$", (OPERATIONS / "procedures.md").read_text(), re.MULTILINE)
    assert len(rows) >= 8
    for row in rows:
        for path in re.findall(r"`([^`]+)`", row):
            assert (ROOT / path).exists(), path


def figures(page: Path, row: str) -> list[str]:
    (found,) = re.findall(rf"^\| {re.escape(row)} \|(.*)\|$", page.read_text(), re.MULTILINE)
    return [cell.strip() for cell in found.split("|")]


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ("memory of one idle sandbox, MiB", "memory of one sandbox, MiB"),
        ("the worker's memory for one sandbox, KiB", "the worker's memory for one, KiB"),
        ("sandboxes started in a second, on two cores", "starts a second"),
    ],
)
def test_capacity_has_the_measured_figures(here: str, there: str) -> None:
    measured = figures(ROOT / "docs/benchmarks.md", there)
    assert len(measured) == 2
    assert figures(OPERATIONS / "capacity.md", here) == measured


def test_capacity_counts_as_the_worker_does() -> None:
    text = (OPERATIONS / "capacity.md").read_text()
    defaults = ServerSettings()
    assert f"gives away {defaults.overcommit_memory} times its memory" in text
    assert f"gives away {defaults.overcommit_cpus:.0f} times its processors" in text
    sessions = (16 * GIB - RESERVED_MEMORY_BYTES) * defaults.overcommit_memory // (GIB // 2)
    assert f"16 GiB take {sessions:.0f} sessions" in text
    assert RESERVED_MEMORY_BYTES == GIB
    pool = target(PoolPolicy(size=2, min=1, max=40), peak=8, refill_s=1.2, quiet_for_s=0)
    assert f"eight creates in that time need a pool of {pool.suggested}" in " ".join(text.split())

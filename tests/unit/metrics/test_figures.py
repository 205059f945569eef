"""Counting: what begins with 0, what is bounded, and that the table is what Prometheus expects."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sandlot.domain.metrics import table
from sandlot.domain.metrics.figures import MAX_SERIES, OTHER, Figures
from sandlot.domain.metrics.metric import SECONDS, Kind, Metric

SOURCES = Path(__file__).parents[3] / "src/sandlot"


def values(figures: Figures) -> dict[str, dict[tuple[str, ...], float]]:
    return {metric.name: dict(values) for metric, values in figures.values()}


def test_known_labels_begin_with_0_because_prometheus_sees_no_increase_otherwise() -> None:
    lost = values(Figures())["sandlot_sandboxes_lost_total"]
    assert lost[("ended",)] == lost[("other",)] == 0
    assert "sandlot_sessions_opened_total" not in values(Figures())  # environments are not known yet


def test_counting_and_observing() -> None:
    figures = Figures()
    figures.count(table.SANDBOXES_LOST, "gone")
    figures.count(table.SANDBOXES_LOST, "gone", by=2)
    assert values(figures)["sandlot_sandboxes_lost_total"][("gone",)] == 3
    for seconds in (0.0, SECONDS[0], SECONDS[0] * 1.01, 10_000.0):
        figures.observe(table.POOL_CLAIM_SECONDS, seconds, "python")
    (claims,) = (found for metric, found in figures.distributions() if metric is table.POOL_CLAIM_SECONDS)
    counts = claims[("python",)].counts
    # A bucket's edge belongs to it, and what is above all edges counts too.
    assert (counts[0], counts[1], counts[-1], sum(counts)) == (2, 1, 1, 4)
    assert claims[("python",)].total == pytest.approx(10_000.0, abs=0.01)


def test_no_label_fills_the_memory() -> None:
    figures = Figures()
    for number in range(MAX_SERIES + 50):
        figures.count(table.EXECS, f"environment-{number}", "ok")
        figures.observe(table.EXEC_SECONDS, 1, f"environment-{number}")
    counted = values(figures)["sandlot_execs_total"]
    assert len(counted) == MAX_SERIES + 1
    assert counted[OTHER, OTHER] == 50
    assert sum(counted.values()) == MAX_SERIES + 50


def test_a_process_counts_only_its_own_metrics() -> None:
    figures = Figures(table.COORDINATOR_METRICS)
    figures.count(table.EXECS, "python", "ok")
    figures.watch(table.HISTORY_LAG, lambda: {(): 1.0})
    assert not any("exec" in name or "history" in name for name in values(figures))


@pytest.mark.parametrize("metric", table.METRICS, ids=lambda metric: metric.name)
def test_names_follow_the_conventions(metric: Metric) -> None:
    assert re.fullmatch(r"sandlot_[a-z]+(_[a-z]+)*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert metric.name.endswith("_seconds") or metric.kind is not Kind.HISTOGRAM
    assert metric.meaning.endswith(".")
    forbidden = {"tenant", "session", "session_id", "thread", "key", "key_id", "host", "exec_id"}
    assert not forbidden & {label.name for label in metric.labels}


def test_every_reason_of_an_error_is_known() -> None:
    found = set()
    for path in SOURCES.rglob("*.py"):
        if "testing" not in path.parts:
            found |= set(re.findall(r'"reason": "([a-z_]+)"', path.read_text(encoding="utf-8")))
    assert len(found) > 20
    assert found <= table.REASONS

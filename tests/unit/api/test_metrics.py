"""What ``/metrics`` says: read by Prometheus' own parser, and looked over by promtool."""

from __future__ import annotations

import shutil
import subprocess

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.api.conftest import Live

from sandlot.api.v1.metrics import RequestMetrics
from sandlot.domain.errors import Busy, Unavailable
from sandlot.domain.metrics import table
from sandlot.domain.metrics.figures import Figures

PROMTOOL = shutil.which("promtool")


async def samples(live: Live) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = (await live.client.get("/metrics")).raise_for_status().text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def errors(code: str, reason: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return ("sandlot_errors_total", (("code", code), ("reason", reason)))


async def test_requests_and_errors_are_counted_by_route_code_and_reason(live: Live) -> None:
    before = await samples(live)
    session = await live.session()
    for _ in range(3):
        assert (await live.client.get("/v1/sessions/sbx_nowhere")).status_code == 404
    await live.client.delete(f"/v1/sessions/{session}")
    assert (await live.client.get(f"/v1/sessions/{session}")).status_code == 404
    assert (await live.client.post("/v1/sessions", json={"nonsense": 1})).status_code == 422
    async with httpx.AsyncClient(base_url=live.url) as stranger:
        assert (await stranger.get("/v1/sessions")).status_code == 401
    after = await samples(live)

    def added(name: tuple[str, tuple[tuple[str, str], ...]]) -> float:
        return after.get(name, 0) - before.get(name, 0)

    assert added(errors("not_found", "")) == 3
    assert added(errors("session_ended", "deleted")) == 1
    assert added(errors("invalid_request", "")) == 1
    assert added(errors("unauthorized", "")) == 1
    route = (("method", "GET"), ("route", "/v1/sessions/{session_id}"))
    assert added(("sandlot_http_request_seconds_count", route)) == 4
    assert added(("sandlot_http_requests_total", (*route, ("status", "404")))) == 4
    assert after["sandlot_ready", ()] == 1
    assert not any(session in str(name) or "nowhere" in str(name) for name in after)


def test_an_unknown_reason_and_method_add_no_series() -> None:
    figures = Figures()
    metrics = RequestMetrics(figures)
    for number in range(10):
        refused = Unavailable("No.", details={"reason": f"made up {number}"})
        metrics.observe(f"METHOD{number}", "/x", 503, 0.1, refused)
    metrics.observe("GET", "/x", 429, 0.1, Busy("No.", details={"reason": {"not": "text"}}))
    counted = {metric.name: dict(found) for metric, found in figures.values()}
    assert counted["sandlot_errors_total"] == {("unavailable", "other"): 10, ("busy", "other"): 1}
    assert counted["sandlot_http_requests_total"] == {("other", "/x", "503"): 10, ("GET", "/x", "429"): 1}


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool: scripts/engine packages installs it")
async def test_promtool_finds_nothing_to_improve(live: Live) -> None:
    figures = Figures(table.METRICS)
    health = await live.service.health()
    shown = RequestMetrics(Figures(())).exposition(health).decode()
    for metric in table.METRICS:
        if f"# TYPE {metric.name} " in shown:
            continue
        labels = ["x"] * len(metric.labels)
        if metric.kind.value == "histogram":
            figures.observe(metric, 1.0, *labels)
        else:
            figures.count(metric, *labels)
    text = RequestMetrics(figures).exposition(health)
    assert PROMTOOL is not None
    checked = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")

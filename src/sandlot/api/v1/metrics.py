"""Prometheus metrics: requests by route, and the service's own health.

Each app has its own registry, so that two apps in one process (or one test) do not count each
other's requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sandlot.domain.service import ServiceHealth

_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


class RequestMetrics:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._service = _ServiceCollector()
        self._registry.register(self._service)
        self._requests = Counter(
            "sandlot_http_requests",
            "Requests by method, route and status. Status 0: the client left before the response.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "sandlot_http_request_seconds",
            "Seconds until the response started.",
            ("method", "route"),
            buckets=_BUCKETS,
            registry=self._registry,
        )

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        method = method if method in _METHODS else "other"
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def exposition(self, health: ServiceHealth) -> bytes:
        self._service.health = health
        return generate_latest(self._registry)


class _ServiceCollector(Collector):
    """The service's health, fetched by the route beforehand because a collector cannot await."""

    health: ServiceHealth | None = None

    def collect(self) -> Iterator[Metric]:
        health = self.health
        if health is None:
            return
        yield GaugeMetricFamily("sandlot_ready", "Whether existing sessions can be used.", value=health.ready)
        yield GaugeMetricFamily("sandlot_creates", "Whether new sessions are accepted.", value=health.creates)
        yield GaugeMetricFamily(
            "sandlot_active_sessions", "Active and lost sessions.", value=health.active_sessions
        )
        yield GaugeMetricFamily(
            "sandlot_calls_under_way", "Sandbox calls in progress.", value=health.calls_under_way
        )
        info = GaugeMetricFamily(
            "sandlot_info", "The worker's id and version.", labels=("worker_id", "version")
        )
        info.add_metric((health.worker_id, health.version), 1)
        yield info
        yield from _history(health)
        yield from _recordings(health)
        yield from _pools(health)


def _history(health: ServiceHealth) -> Iterator[Metric]:
    if (history := health.history) is None:
        return
    yield CounterMetricFamily(
        "sandlot_history_events", "Events recorded in the history.", value=history.recorded
    )
    yield CounterMetricFamily(
        "sandlot_history_dropped_events",
        "Events not recorded, because the disk could not keep up.",
        value=history.dropped,
    )
    yield GaugeMetricFamily("sandlot_history_bytes", "Size of the history on disk.", value=history.used_bytes)


def _recordings(health: ServiceHealth) -> Iterator[Metric]:
    if (recordings := health.recordings) is None:
        return
    yield GaugeMetricFamily(
        "sandlot_recorded_sessions", "Sessions that have a recording.", value=recordings.sessions
    )
    yield GaugeMetricFamily(
        "sandlot_recordings_bytes", "Size of all recordings on disk.", value=recordings.used_bytes
    )


def _pools(health: ServiceHealth) -> Iterator[Metric]:
    label = ("environment",)
    sandboxes = GaugeMetricFamily(
        "sandlot_pool_sandboxes", "Warm sandboxes by state.", labels=("environment", "state")
    )
    target = GaugeMetricFamily("sandlot_pool_target", "Target number of warm sandboxes.", labels=label)
    waiting = GaugeMetricFamily(
        "sandlot_pool_waiting", "Creates that are waiting for a sandbox.", labels=label
    )
    claim = GaugeMetricFamily(
        "sandlot_pool_claim_seconds_p50", "Median seconds to claim a sandbox.", labels=label
    )
    hits = CounterMetricFamily("sandlot_pool_hits", "Creates served by a warm sandbox.", labels=label)
    misses = CounterMetricFamily(
        "sandlot_pool_misses",
        "Creates not served by a warm sandbox, by reason.",
        labels=("environment", "reason"),
    )
    failures = CounterMetricFamily("sandlot_pool_failures", "Warm sandboxes that failed.", labels=label)
    for name, pool in sorted(health.pools.items()):
        sandboxes.add_metric((name, "ready"), pool.ready)
        sandboxes.add_metric((name, "making"), pool.making)
        target.add_metric((name,), pool.target)
        waiting.add_metric((name,), pool.waiting)
        claim.add_metric((name,), pool.claim_ms_p50 / 1000)
        hits.add_metric((name,), pool.hits)
        for reason, count in sorted(pool.misses.items()):
            misses.add_metric((name, reason), count)
        failures.add_metric((name,), pool.failures)
    yield from (sandboxes, target, waiting, claim, hits, misses, failures)

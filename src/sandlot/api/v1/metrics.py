"""Prometheus metrics: the figures of this process, and the service's own health."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import (
    Metric as Family,
)
from prometheus_client.registry import Collector

from sandlot.domain.errors import SandlotError
from sandlot.domain.metrics import table
from sandlot.domain.metrics.figures import OTHER, Distribution, Figures, Labels
from sandlot.domain.metrics.metric import Kind, Metric
from sandlot.domain.service import ServiceHealth

_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})
_NO_LABELS: Final = ()


class RequestMetrics:
    """``figures``: what the rest of the process counts. Each app has its own, so that two apps in one process
    do not count each other's requests.
    """

    def __init__(self, figures: Figures | None = None) -> None:
        self._figures = figures or Figures(table.API_METRICS)
        self._collector = _Collector(self._figures)
        self._registry = CollectorRegistry()
        self._registry.register(self._collector)

    def observe(
        self, method: str, route: str, status: int, seconds: float, error: SandlotError | None = None
    ) -> None:
        """``error``: what the response says, if it says one."""
        method = method if method in _METHODS else OTHER
        self._figures.count(table.REQUESTS, method, route, str(status))
        self._figures.observe(table.REQUEST_SECONDS, seconds, method, route)
        if error is not None:
            self._figures.count(table.ERRORS, error.code, _reason(error))

    def exposition(self, health: ServiceHealth) -> bytes:
        self._collector.health = health
        return generate_latest(self._registry)


def _reason(error: SandlotError) -> str:
    reason = error.details.get("reason", "")
    return reason if isinstance(reason, str) and reason in table.REASONS else OTHER if reason else ""


class _Collector(Collector):
    """``health`` is fetched by the route beforehand, because a collector cannot await."""

    health: ServiceHealth | None = None

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Family]:
        if self.health is not None:
            for metric, values in _of_health(self.health):
                yield _family(metric, values)
        for metric, values in self._figures.values():
            yield _family(metric, values)
        for metric, distributions in self._figures.distributions():
            yield _histogram(metric, distributions)


def _family(metric: Metric, values: Mapping[Labels, float]) -> Family:
    kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family = kind(metric.name, metric.meaning, labels=[label.name for label in metric.labels])
    for labels, value in sorted(values.items()):
        family.add_metric(labels, value)
    return family


def _histogram(metric: Metric, distributions: Mapping[Labels, Distribution]) -> Family:
    family = HistogramMetricFamily(
        metric.name, metric.meaning, labels=[label.name for label in metric.labels]
    )
    edges = [*(f"{edge:g}" for edge in metric.buckets), "+Inf"]
    for labels, distribution in sorted(distributions.items()):
        counts = accumulate(distribution.counts)
        family.add_metric(labels, list(zip(edges, counts, strict=True)), distribution.total)
    return family


def _of_health(health: ServiceHealth) -> Iterator[tuple[Metric, Mapping[Labels, float]]]:
    yield table.READY, {_NO_LABELS: health.ready}
    yield table.CREATES, {_NO_LABELS: health.creates}
    yield table.PROBLEMS, {_NO_LABELS: len(health.problems)}
    yield table.ACTIVE_SESSIONS, {_NO_LABELS: health.active_sessions}
    yield table.CALLS_UNDER_WAY, {_NO_LABELS: health.calls_under_way}
    yield table.INFO, {(health.worker_id, health.version): 1}
    if (history := health.history) is not None:
        yield table.HISTORY_EVENTS, {_NO_LABELS: history.recorded}
        yield table.HISTORY_DROPPED, {_NO_LABELS: history.dropped}
        yield table.HISTORY_BYTES, {_NO_LABELS: history.used_bytes}
    if (recordings := health.recordings) is not None:
        yield table.RECORDED_SESSIONS, {_NO_LABELS: recordings.sessions}
        yield table.RECORDINGS_BYTES, {_NO_LABELS: recordings.used_bytes}
    pools = health.pools.items()
    yield (
        table.POOL_SANDBOXES,
        {
            (name, state): count
            for name, pool in pools
            for state, count in (("ready", pool.ready), ("making", pool.making))
        },
    )
    yield table.POOL_TARGET, {(name,): pool.target for name, pool in pools}
    yield table.POOL_WAITING, {(name,): pool.waiting for name, pool in pools}
    yield table.POOL_HITS, {(name,): pool.hits for name, pool in pools}
    yield (
        table.POOL_MISSES,
        {(name, reason): count for name, pool in pools for reason, count in pool.misses.items()},
    )
    yield table.POOL_FAILURES, {(name,): pool.failures for name, pool in pools}

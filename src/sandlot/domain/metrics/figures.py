"""``Figures``: what one process has counted and measured since it started.

Whoever counts gets the same ``Figures``. Only the API knows in which form they are read. All of it is used
on the event loop alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from sandlot.domain.metrics.metric import Kind, Metric
from sandlot.domain.metrics.table import SERVER_METRICS

# Of one metric. What comes later counts as ``OTHER``, so that no label can fill the memory.
MAX_SERIES: Final = 1000
OTHER: Final = "other"

Labels = tuple[str, ...]
Read = Callable[[], Mapping[Labels, float]]


@dataclass(slots=True)
class Distribution:
    """``counts``: per bucket, and one more for what is above the last."""

    counts: list[int]
    total: float = 0.0


@dataclass(slots=True)
class _Series:
    values: dict[Labels, float] = field(default_factory=dict)
    distributions: dict[Labels, Distribution] = field(default_factory=dict)


class Figures:
    """``metrics``: those that this process has. Others are counted nowhere and cost next to nothing."""

    def __init__(self, metrics: Collection[Metric] = SERVER_METRICS) -> None:
        self._series = {metric: _Series() for metric in metrics}
        self._reads: dict[Metric, Read] = {}
        for metric, series in self._series.items():
            for labels in metric.known_values():
                if metric.kind is Kind.COUNTER:
                    series.values[labels] = 0.0
                elif metric.kind is Kind.HISTOGRAM:
                    series.distributions[labels] = _empty(metric)

    def count(self, metric: Metric, *labels: str, by: float = 1.0) -> None:
        series = self._series.get(metric)
        if series is None:
            return
        values = series.values
        labels = _bounded(values, labels)
        values[labels] = values.get(labels, 0.0) + by

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        series = self._series.get(metric)
        if series is None:
            return
        labels = _bounded(series.distributions, labels)
        distribution = series.distributions.get(labels)
        if distribution is None:
            distribution = series.distributions[labels] = _empty(metric)
        distribution.counts[bisect_left(metric.buckets, value)] += 1
        distribution.total += value

    def watch(self, metric: Metric, read: Read) -> None:
        """Ask ``read`` whenever the figures are read."""
        if metric in self._series:
            self._reads[metric] = read

    def values(self) -> Iterator[tuple[Metric, Mapping[Labels, float]]]:
        """The counters and gauges that have a value."""
        for metric, series in self._series.items():
            read = self._reads.get(metric)
            values = series.values if read is None else read()
            if values:
                yield metric, values

    def distributions(self) -> Iterator[tuple[Metric, Mapping[Labels, Distribution]]]:
        for metric, series in self._series.items():
            if series.distributions:
                yield metric, series.distributions


def _empty(metric: Metric) -> Distribution:
    return Distribution([0] * (len(metric.buckets) + 1))


def _bounded(known: Mapping[Labels, object], labels: Labels) -> Labels:
    if labels in known or len(known) < MAX_SERIES:
        return labels
    return (OTHER,) * len(labels)

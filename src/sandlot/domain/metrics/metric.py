"""What a metric is: its name, its labels, and what it means."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Final

# Seconds: from an answer out of memory to the longest calls.
SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


class Kind(StrEnum):
    """How a metric behaves.

    counter: it only grows, and begins with 0 when the process starts.
    gauge: it goes up and down.
    histogram: it counts observations in buckets.
    """

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Member(StrEnum):
    """Which processes have a metric.

    all: every server.
    worker: a single server, and every worker of a fleet.
    fleet: every worker and coordinator of a fleet.
    coordinator: every coordinator.
    """

    ALL = "all"
    WORKER = "worker"
    FLEET = "fleet"
    COORDINATOR = "coordinator"


@dataclass(frozen=True, slots=True)
class Label:
    """``values``: all that it can have, if they are known beforehand. They then begin with 0, because
    Prometheus sees no increase in a counter that appears with 1.
    """

    name: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """``name`` is complete: a counter's ends in ``_total``. ``buckets``: of a histogram."""

    name: str
    kind: Kind
    meaning: str
    labels: tuple[Label, ...] = ()
    members: Member = Member.WORKER
    buckets: tuple[float, ...] = SECONDS

    def known_values(self) -> list[tuple[str, ...]]:
        """The combinations of label values that are known beforehand."""
        return list(product(*(label.values for label in self.labels)))

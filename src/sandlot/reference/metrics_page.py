"""docs/reference/metrics.md: every metric, from the table in ``domain.metrics``."""

from __future__ import annotations

from typing import Final

from sandlot.domain.metrics.metric import Kind, Member, Metric
from sandlot.domain.metrics.table import METRICS
from sandlot.reference.markdown import GENERATED, heading, page, paragraph, sentence, table

_HEAD: Final = f"""What `GET /metrics` shows, for Prometheus. It needs a key with the scope `metrics:read`.
Give Prometheus a key that has no other scope. {GENERATED}

A single server has the metrics of all servers and of a worker. In a fleet, scrape every member: coordinators
do not collect the figures of workers. Counters begin with 0 when a process starts.

No label names a tenant, a session, a key or a host. A metric that would get more than 1,000 series counts the
rest under `other`."""

_TITLES: Final = {
    Member.ALL: "All servers",
    Member.WORKER: "Workers",
    Member.FLEET: "Members of a fleet",
    Member.COORDINATOR: "Coordinators",
}


def metrics_page() -> str:
    return page(
        heading(1, "Metrics"),
        *(paragraph(text) for text in _HEAD.split("\n\n")),
        *(_section(member, title) for member, title in _TITLES.items()),
    )


def _section(member: Member, title: str) -> str:
    rows = (_row(metric) for metric in METRICS if metric.members is member)
    return page(heading(2, title), table(("metric", "kind", "labels", "meaning"), rows))


def _row(metric: Metric) -> tuple[str, ...]:
    kind = metric.kind.value
    if metric.kind is Kind.HISTOGRAM:
        kind = f"{kind}, {metric.buckets[0]:g} to {metric.buckets[-1]:g} s"
    labels = (
        f"`{label.name}`" + (f": {', '.join(f'`{value}`' for value in label.values)}" if label.values else "")
        for label in metric.labels
    )
    return f"`{metric.name}`", kind, "; ".join(labels), sentence(metric.meaning)

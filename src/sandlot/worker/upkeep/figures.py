"""What the metrics of a worker show of its parts. It is read at each scrape and counted nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sandlot.domain.metrics import table
from sandlot.domain.metrics.figures import Figures, Labels
from sandlot.worker.capacity import Capacity
from sandlot.worker.disk import DATA_DISK, ENGINE_DISK, STORAGE_DISK, Disk
from sandlot.worker.history.history import History
from sandlot.worker.network.networks import Networks
from sandlot.worker.sessions.table import SessionTable

_DISKS: Final = {DATA_DISK: "data", ENGINE_DISK: "engine", STORAGE_DISK: "workspaces"}


def watch_parts(
    figures: Figures,
    *,
    disk: Disk,
    capacity: Capacity,
    history: History,
    networks: Networks,
    sessions: SessionTable,
) -> None:
    def amounts(field: str) -> Mapping[Labels, float]:
        use = capacity.use
        if use is None:
            return {}
        return {("total",): getattr(use.total, field), ("given",): getattr(use.given, field)}

    traffic = networks.traffic
    figures.watch(table.DISK_FREE, lambda: {(_DISKS[space.disk],): space.free_bytes for space in disk.spaces})
    figures.watch(
        table.DISK_SIZE, lambda: {(_DISKS[space.disk],): space.total_bytes for space in disk.spaces}
    )
    figures.watch(table.MEMORY, lambda: amounts("memory_bytes"))
    figures.watch(table.CPUS, lambda: amounts("cpus"))
    figures.watch(table.HISTORY_LAG, lambda: {(): history.lag_s})
    figures.watch(table.EXECS_RUNNING, lambda: {(): history.execs.running})
    figures.watch(
        table.UNRESPONSIVE,
        lambda: {(): sum(session.unresponsive_since is not None for session in sessions)},
    )
    figures.watch(
        table.EGRESS_BYTES,
        lambda: {("sent",): traffic.sent_bytes, ("received",): traffic.received_bytes},
    )
    figures.watch(
        table.EGRESS_REQUESTS, lambda: {("reached",): traffic.requests, ("denied",): traffic.denied}
    )
    figures.watch(table.EGRESS_REFUSED, lambda: {(): traffic.refused})
    figures.watch(table.EGRESS_OPEN, lambda: {(): traffic.open})

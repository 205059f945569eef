"""Problems that an operator should look at, one sentence each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sandlot.worker.artifacts.copies import Copies
from sandlot.worker.pool.warm_pool import WarmPool
from sandlot.worker.sessions.live_session import LiveSession
from sandlot.worker.workspaces.automatic import AutomaticSnapshots
from sandlot.worker.workspaces.exports import Exports

# How many sessions with unresponsive sandboxes a problem names at most.
MAX_NAMED = 5


def disk_problems(own: str | None, pools: Iterable[WarmPool]) -> tuple[str, ...]:
    """``own``: the problem of the worker's data disk, if any."""
    engine = "Docker's disk is full" if any(pool.out_of_space for pool in pools) else None
    return tuple(problem for problem in (own, engine) if problem is not None)


def broken_environments(pools: Mapping[str, WarmPool]) -> Iterator[str]:
    for name, pool in pools.items():
        stats = pool.stats()
        if stats.failures:
            yield f"environment {name}: {stats.last_failure}"


def silent_sandboxes(live_sessions: Iterable[LiveSession]) -> Iterator[str]:
    silent = [
        live_session.session.id
        for live_session in live_sessions
        if live_session.unresponsive_since is not None
    ]
    if silent:
        yield f"Sandboxes that do not answer: {len(silent)}. Sessions: {', '.join(silent[:MAX_NAMED])}"


def export_problems(
    exports: Exports | None, automatic: AutomaticSnapshots | None, copies: Copies | None
) -> Iterator[str]:
    """Of a worker that saves snapshots and artifacts in object storage."""
    for part in (exports, automatic, copies):
        if part is not None:
            yield from part.problems

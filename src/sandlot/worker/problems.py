"""What an operator should look at, in a sentence each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sandlot.worker.live import Live
from sandlot.worker.pool import Pool

# Sessions that are named at most, of those whose sandboxes do not answer.
MAX_NAMED = 5


def disk_problems(own: str | None, pools: Iterable[Pool]) -> tuple[str, ...]:
    """``own``: of the disk with the worker's records."""
    engine = "the engine's disk is full" if any(pool.out_of_space for pool in pools) else None
    return tuple(problem for problem in (own, engine) if problem is not None)


def broken_environments(pools: Mapping[str, Pool]) -> Iterator[str]:
    for name, pool in pools.items():
        stats = pool.stats()
        if stats.failures:
            yield f"environment {name}: {stats.last_failure}"


def silent_sandboxes(lives: Iterable[Live]) -> Iterator[str]:
    silent = [live.session.id for live in lives if live.unresponsive_since is not None]
    if silent:
        yield f"{len(silent)} sandboxes do not answer: {', '.join(silent[:MAX_NAMED])}"

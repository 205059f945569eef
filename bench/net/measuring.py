"""All that ``python -m bench.net`` measures, on a server of its own."""

from __future__ import annotations

from typing import Any

from bench.net.neighbours import Neighbours, measure_neighbours
from bench.net.outside import outside
from bench.net.tiers import ENVIRONMENTS, TierFigures, measure_tier
from bench.server import serving


async def measure(
    *, rounds: int, megabytes: int, neighbours: int, echoes: int
) -> tuple[dict[str, TierFigures], Neighbours]:
    with outside() as port:
        async with (
            serving(
                egress_allow="127.0.0.0/8",
                egress_ceiling="any",
                pool_size=4,
                max_sessions=2 * neighbours + 10,
                create_concurrency=8,
            ) as served,
            served.client() as client,
        ):
            figures = {
                tier: await measure_tier(client, tier, port, rounds=rounds, megabytes=megabytes)
                for tier in ENVIRONMENTS
            }
            beside = await measure_neighbours(served, client, port, count=neighbours, rounds=echoes)
    return figures, beside


def summary(figures: dict[str, TierFigures], beside: Neighbours) -> dict[str, Any]:
    tiers = {
        tier: {
            "mb_per_s": each.mb_per_s,
            "added_p50_ms": each.added_p50_ms,
            "times_slower": each.times_slower,
            "times_later": each.times_later,
        }
        for tier, each in figures.items()
    }
    return {**tiers, "neighbour_ratio": beside.ratio, "memory_growth": beside.memory_growth}

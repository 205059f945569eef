"""The fleet's benchmark in its short form: ratios at half their bars, the spread in full.

The bars themselves and their latest figures are in docs/benchmarks.md.
"""

from __future__ import annotations

import pytest
from bench import fleet


@pytest.mark.docker
@pytest.mark.slow
async def test_the_way_through_a_fleet() -> None:
    """Bars: a create through a coordinator 1.5, a command straight to its worker 1.1 of a single server's."""
    figures = await fleet.measure_ways(rounds=4)
    assert figures["create_straight_ratio"] < 3.0
    assert figures["exec_straight_ratio"] < 2.2
    assert figures["exec_proxied_p50_ms"] > 0


@pytest.mark.docker
@pytest.mark.slow
async def test_sessions_spread_over_workers() -> None:
    """Bar: 20 % of 90 on 3; fewer here, where one session is 10 %."""
    figures = await fleet.measure_spread(sessions=30, workers=3)
    assert figures["spread_sessions"] == 30
    assert figures["spread_deviation"] <= 0.2


async def test_sessions_spread_over_simulated_workers() -> None:
    figures = await fleet.measure_simulated_spread(sessions=300)
    assert figures["simulated_sessions"] == 300
    assert figures["simulated_deviation"] <= 0.1

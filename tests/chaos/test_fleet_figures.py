"""The fleet's benchmark in its short form: ratios at half their bars, the spread in full.

The bars themselves and their latest figures are in docs/benchmarks.md.
"""

from __future__ import annotations

import pytest
from bench.fleet import __main__ as fleet

from tests.measuring import best_of_three


@pytest.mark.alone
@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(600)  # thirty sandboxes are made before anything is measured
async def test_the_way_through_a_fleet() -> None:
    """Bars: a create through a coordinator 1.5, a command straight to its worker 1.1 of a single server's."""
    figures = await best_of_three(
        lambda: fleet.measure_routes(rounds=8),
        lambda figures: figures["create_straight_ratio"] < 3.0 and figures["exec_straight_ratio"] < 2.2,
    )
    assert figures["exec_proxied_p50_ms"] > 0
    assert 0 <= figures["create_stolen_share"] < 1


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_sessions_spread_over_workers() -> None:
    """Bar: 20 % of 90 on 3; fewer here, but so many that it is more than one pool."""
    figures = await fleet.measure_spread(sessions=45, workers=3)
    assert figures["spread_sessions"] == 45
    assert figures["spread_deviation"] <= 0.2


async def test_sessions_spread_over_simulated_workers() -> None:
    """So many that the bar is more than one pool: the workers do not report at the same moment."""
    figures = await fleet.measure_simulated_spread(sessions=600)
    assert figures["simulated_sessions"] == 600
    assert figures["simulated_deviation"] <= 0.1

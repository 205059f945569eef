"""The benchmarks in their short form: ratios at half their bars, successes and leaks in full.

The bars themselves and their latest figures are in docs/benchmarks.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from bench import churn, idle, load
from bench.server import serving

from tests.measuring import best_of_three

pytestmark = [pytest.mark.docker, pytest.mark.alone, pytest.mark.slow, pytest.mark.timeout(600)]


async def bench_of_the_command_line() -> dict[str, float]:
    async with serving() as served:
        await served.wait_warm(5)
        command = [sys.executable, "-m", "sandlot", "--url", served.url, "bench", "--rounds", "9", "--json"]
        # The engine's own client first: an older one on PATH may not be understood by it.
        environ = os.environ | {"PATH": f"/usr/bin:{os.environ['PATH']}"}
        ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=180, env=environ)
    return dict(json.loads(ran.stdout))


async def test_bench_of_the_command_line() -> None:
    """Bars: create 20, first output 15, exec 12 times faster than Docker's own."""
    await best_of_three(
        bench_of_the_command_line,
        lambda figures: (
            figures["create_ratio"] >= 10
            and figures["create_custom_ratio"] >= 10
            and figures["first_output_ratio"] >= 7.5
            and figures["exec_ratio"] >= 6
            and figures["pool_hit_rate"] >= 0.9
            and figures["create_p50_ms"] > 0
        ),
    )


async def test_a_burst_of_creates() -> None:
    figures = await load.measure(60, 30)
    assert (figures["creates"], figures["failed"], figures["pool_hit_rate"]) == (60, 0, 1)


async def test_churn_leaks_nothing() -> None:
    """Bar: 0.85 of the bare engine's rate."""
    figures = await best_of_three(
        lambda: churn.measure(10), lambda figures: figures["rate_ratio"] >= 0.85 / 2
    )
    assert figures["failed"] == 0
    assert figures["containers_beyond_the_pool"] == 0
    assert figures["sessions_left"] == 0


async def test_idle_sessions_cost_nothing() -> None:
    """Bar: 2 % of a core with 300 sessions."""
    figures = await best_of_three(
        lambda: idle.measure(20, 10), lambda figures: figures["cpu_percent_of_a_core"] <= 4
    )
    assert figures["sessions"] == 20

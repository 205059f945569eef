"""The benchmarks in short form. A shared machine is noisy: medians are asserted at half of the bar that bench/ shows,
and what is measured once, where one pause of the machine counts in full, at a third or a quarter."""

from __future__ import annotations

import pytest
from bench import density, files
from bench import exec as exec_bench

from sandlot.domain.environment import Tier
from tests.measuring import best_of_three

pytestmark = [
    pytest.mark.docker,
    pytest.mark.alone,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(600),
]


@pytest.mark.parametrize(("tier", "bar"), [("runc", 20), ("runsc", 4)])
async def test_exec_is_faster_than_docker_exec(tier: str, bar: float) -> None:
    await best_of_three(
        lambda: exec_bench.measure(Tier(tier), rounds=15), lambda figures: figures["ratio"] >= bar / 2
    )


@pytest.mark.parametrize("tier", ["runc", "runsc"])
async def test_large_file_and_many_small_ones(tier: str) -> None:
    await best_of_three(
        lambda: files.measure(Tier(tier), megabytes=256, rounds=3, files=3000),
        lambda figures: (
            figures["in_ratio"] >= 1 / 6
            and figures["out_ratio"] >= 1 / 6
            and figures["memory_growth_mb"] < 64
            and figures["archive_in_s"] / 3000 < 4 * 5 / 10_000
        ),
    )


@pytest.mark.parametrize(("tier", "count"), [("runc", 40), ("runsc", 20)])
async def test_many_sandboxes_at_once(tier: str, count: int) -> None:
    figures = await best_of_three(
        lambda: density.measure(Tier(tier), count), lambda figures: figures["ratio"] >= 0.9 / 3
    )
    assert (figures["all_answered"], figures["left"]) == (count, 0), figures

"""The benchmarks in short form. A shared machine is noisy: medians are asserted at half of the bar that bench/ shows,
and what is measured once, where one pause of the machine counts in full, at a third or a quarter."""

from __future__ import annotations

import pytest
from bench import density, files
from bench import exec as exec_bench

from sandlot.domain.environment import Tier

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(400)]


@pytest.mark.parametrize(("tier", "bar"), [("runc", 20), ("runsc", 4)])
async def test_exec_is_faster_than_docker_exec(tier: str, bar: float) -> None:
    figures = await exec_bench.measure(Tier(tier), rounds=15)
    assert figures["ratio"] >= bar / 2, figures


@pytest.mark.parametrize("tier", ["runc", "runsc"])
async def test_large_file_and_many_small_ones(tier: str) -> None:
    figures = await files.measure(Tier(tier), megabytes=256, rounds=3, files=3000)
    assert figures["in_ratio"] >= 1 / 6, figures
    assert figures["out_ratio"] >= 1 / 6, figures
    assert figures["memory_growth_mb"] < 64, figures
    assert figures["archive_in_s"] / 3000 < 4 * 5 / 10_000, figures


@pytest.mark.parametrize(("tier", "count"), [("runc", 40), ("runsc", 20)])
async def test_many_sandboxes_at_once(tier: str, count: int) -> None:
    figures = await density.measure(Tier(tier), count)
    assert (figures["all_answered"], figures["left"]) == (count, 0), figures
    assert figures["ratio"] >= 0.9 / 3, figures

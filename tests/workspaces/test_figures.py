"""The benchmark of workspaces, small: it runs, and each of its ratios is within twice its bar."""

from __future__ import annotations

import pytest
from bench.rig import p50
from bench.workspaces.__main__ import FLAT, line_bars
from bench.workspaces.measuring import PARTS, measure

pytestmark = [pytest.mark.docker, pytest.mark.alone, pytest.mark.timeout(600)]


async def test_the_ratios_hold() -> None:
    figures = await measure(parts=PARTS, rounds=4, files=1000, megabytes=100, snapshots=150, threads=20)
    summary = figures.summary()
    assert summary["create_ratio"] <= 2 * 1.25, summary
    assert summary["resume_ratio"] <= 2 * 3, summary
    # A snapshot copies nothing: it takes a fraction of what even a copy by reference takes.
    assert p50(figures.snapshot) < figures.peers["cp --reflink"], (figures.snapshot, figures.peers)
    assert figures.containers_while_hibernated == 0
    for line in (figures.line_create, figures.line_delete):
        assert line[-1] <= 2 * FLAT * line[0], line
    growth = line_bars(figures)[-1]
    assert growth.held, growth

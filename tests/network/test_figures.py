"""``python -m bench.net`` in its short form: ratios at half their bars.

The bars themselves and their latest figures are in docs/benchmarks.md.
"""

from __future__ import annotations

from typing import Any

import pytest
from bench.net.measuring import measure, summary

from tests.measuring import best_of_three

pytestmark = [pytest.mark.docker, pytest.mark.alone, pytest.mark.slow, pytest.mark.timeout(600)]


async def short() -> dict[str, Any]:
    return summary(*await measure(rounds=2, megabytes=30, neighbours=20, echoes=30))


async def test_speed_and_neighbours() -> None:
    """Bars: beside a direct connection, 40 times slower on runc and 95 on runsc, and 5 and 12 times later; beside
    downloads, 3 times the idle p50; and memory that stays."""
    await best_of_three(
        short,
        lambda seen: (
            seen["runc"]["times_slower"] <= 80
            and seen["runsc"]["times_slower"] <= 190
            and seen["runc"]["times_later"] <= 10
            and seen["runsc"]["times_later"] <= 24
            and seen["neighbour_ratio"] <= 6
            and seen["memory_growth"] <= 1.2
        ),
    )

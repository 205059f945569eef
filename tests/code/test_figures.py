"""The benchmark of code, small: it runs, and a cell takes no multiple of what it takes on a bare kernel."""

from __future__ import annotations

import asyncio

import pytest
from bench.code.__main__ import measure

from tests.code.conftest import kernel_image

pytestmark = [pytest.mark.docker, pytest.mark.alone, pytest.mark.timeout(300)]


async def test_a_cell_beside_a_bare_kernel() -> None:
    image = await asyncio.to_thread(kernel_image)
    figures = await measure(image, "runc", rounds=20, sessions=3)
    bare = figures["bare_ms"]
    # At most 15 ms more than about 8 on a quiet machine, so twice three times as long at the most.
    for way in ("sdk", "e2b"):
        assert figures[f"{way}_ms"] <= 6 * bare, figures
    # The kernel has started before: otherwise its start takes a hundred times as long.
    assert figures["first_ms"] <= 20 * bare, figures

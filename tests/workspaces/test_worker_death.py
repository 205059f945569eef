"""A few rounds of ``python -m tests.workspaces.deaths``; 200 are run by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workspaces.deaths import run

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(600)]
ROUNDS = 6


@pytest.mark.parametrize("seed", [1, 2])
async def test_old_state_or_new(btrfs: Path, seed: int) -> None:
    story = await run(ROUNDS, seed, btrfs)
    assert story.died_at.total() == ROUNDS

"""A few rounds of ``python -m tests.workspaces.deaths``; all 200 are for ``make check-all`` and by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workspaces.deaths import run

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(600)]
ROUNDS = 4


@pytest.mark.parametrize("seed", [1, 2])
async def test_old_state_or_new(btrfs: Path, seed: int) -> None:
    died = await run(ROUNDS, seed, btrfs)
    assert died.total() == ROUNDS

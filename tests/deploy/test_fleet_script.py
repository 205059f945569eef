"""The whole fleet in containers, as docs/howto/scaling.md shows it: the script is the test."""

from __future__ import annotations

import subprocess

import pytest

from tests.deploy.fronted import ROOT

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(900)]


def test_the_fleet_outlives_what_is_done_to_it() -> None:
    """The same with Sentinels takes as long again, and tests/fleet_faults/test_failover.py has a failover."""
    ran = subprocess.run(
        [ROOT / "scripts/fleet-compose", "workers"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=880,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert "all as expected" in ran.stdout

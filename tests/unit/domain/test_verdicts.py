"""Why a command ended, when more than one reason is there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandlot.domain.execution import Exited, Verdict, verdict_of
from sandlot.domain.network.decisions import Denied

DENIED = (Denied(target="pypi.org:443", rule="not allowed", why="", ask=""),)


@pytest.mark.parametrize(
    ("exited", "verdict"),
    [
        (Exited(0, 0, "exited"), Verdict.OK),
        (Exited(1, 0, "exited"), Verdict.EGRESS_DENIED),
        (Exited(143, 0, "exited"), Verdict.EGRESS_DENIED),
        (Exited(139, 0, "exited"), Verdict.NONZERO),
        (Exited(134, 6, "exited"), Verdict.NONZERO),
        (Exited(1, 0, "exited", disk_full=True), Verdict.DISK_FULL),
        (Exited(137, 9, "timeout"), Verdict.TIMEOUT),
    ],
)
def test_a_command_to_which_something_was_denied(exited: Exited, verdict: Verdict) -> None:
    """It is the reason if the command failed by itself, and not if it crashed or somebody ended it."""
    assert verdict_of(replace(exited, denied=DENIED)) is verdict

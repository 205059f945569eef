from __future__ import annotations

import pytest

from sandlot.fleet.directory import DirectoryStatus, WorkerAt, WorkerState, WorkerStatus
from sandlot.fleet.fleet_health import MAX_NAMED, health_of


def workers(count: int, state: WorkerState) -> list[WorkerStatus]:
    return [
        WorkerStatus(WorkerAt(f"w{number}", f"http://w{number}", 1, state), "1.0", -5.0, None, 0)
        for number in range(count)
    ]


@pytest.mark.parametrize("settled", [True, False])
def test_what_stops_everybody_is_named_before_what_is_too_much_to_name(settled: bool) -> None:
    status = DirectoryStatus("g", settled, sessions=3, reservations=0)
    health = health_of("c", status, workers(2 * MAX_NAMED, WorkerState.LATE), ["http://missing"])
    assert not health.ready
    assert len(health.problems) == MAX_NAMED
    assert health.problems[0] == "no worker is alive"
    assert ("the directory is being filled again from the workers" in health.problems) is not settled


def test_a_living_worker_is_enough() -> None:
    status = DirectoryStatus("g", True, sessions=3, reservations=0)
    health = health_of("c", status, workers(1, WorkerState.ALIVE), ["http://w0/", "http://missing"])
    assert health.ready
    assert health.problems == ("worker http://missing has not joined",)

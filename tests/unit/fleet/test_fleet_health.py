from __future__ import annotations

from dataclasses import replace

import pytest

from sandlot.domain.capacity.readiness import Readiness, ReadinessState
from sandlot.domain.environment import Environment, Recipe
from sandlot.domain.errors import Unavailable
from sandlot.domain.service import Catalogue, EnvironmentInfo
from sandlot.fleet.coordinator.health import MAX_PROBLEMS, FleetHealth, fleet_body, health_of, with_readiness
from sandlot.fleet.directory.contract import (
    DirectoryStatus,
    WorkerCard,
    WorkerRef,
    WorkerReport,
    WorkerState,
    WorkerStatus,
)
from sandlot.fleet.directory.memory import MemoryDirectory
from sandlot.fleet.signing_keys import PublicKeys, SigningKey

OWN, OLD, OTHER = SigningKey.generate("k2"), SigningKey.generate("k1"), SigningKey.generate("k2")
(KEY,) = OWN.public.fingerprints


def workers(count: int, state: WorkerState) -> list[WorkerStatus]:
    return [
        WorkerStatus(WorkerRef(f"w{number}", f"http://w{number}", 1, state), "1.0", -5.0, None, 0)
        for number in range(count)
    ]


@pytest.mark.parametrize("settled", [True, False])
def test_what_stops_everybody_is_named_before_what_is_too_much_to_name(settled: bool) -> None:
    status = DirectoryStatus("g", settled, sessions=3, reservations=0)
    health = health_of("c", status, workers(2 * MAX_PROBLEMS, WorkerState.LATE), ["http://missing"], KEY)
    assert (health.ready, health.creates) == (False, False)
    assert len(health.problems) == MAX_PROBLEMS
    assert health.problems[0] == "no worker is alive"
    assert ("the directory is being rebuilt from the workers" in health.problems) is not settled


def test_a_living_worker_is_enough() -> None:
    status = DirectoryStatus("g", True, sessions=3, reservations=0)
    health = health_of("c", status, workers(1, WorkerState.ALIVE), ["http://w0/", "http://missing"], KEY)
    assert (health.ready, health.creates) == (True, True)
    assert health.problems == ("worker http://missing has not joined",)


def test_what_a_worker_tells_of_its_machine_is_named() -> None:
    """O5."""
    full = "the disk of /var/lib/docker is full"
    (worker,) = workers(1, WorkerState.ALIVE)
    told = replace(worker, report=WorkerReport(problems=(full,)))
    status = DirectoryStatus("g", True, sessions=3, reservations=0)
    assert health_of("c", status, [told], [], KEY).problems == (f"worker w0: {full}",)
    assert fleet_body(status, [told], KEY).workers[0].problems == [full]


def test_while_the_directory_settles_what_it_knows_can_be_used() -> None:
    status = DirectoryStatus("g", False, sessions=3, reservations=0)
    health = health_of("c", status, workers(1, WorkerState.ALIVE), [], KEY)
    assert (health.ready, health.creates) == (True, False)


async def test_an_outage_of_the_directory_takes_no_coordinator_out() -> None:
    """O8: a load balancer that asks ``/ready`` would take all of them out, although commands go on."""
    now = [0.0]
    directory = MemoryDirectory(clock=lambda: now[0])
    health = FleetHealth(directory, "c", (), KEY, lambda: now[0])
    lease = await directory.join(WorkerCard("w1", "http://w1", "1.0"), "p")
    now[0] += directory.timings.lease_s
    await directory.report(lease, WorkerReport())
    assert ((await health.current()).ready, (await health.current()).creates) == (True, True)
    answers, directory.status = directory.status, _away  # type: ignore[method-assign]
    for _ in range(3):
        now[0] += 2
        away = await health.current()
        assert (away.ready, away.creates, away.workers) == (True, False, 1)
        assert away.problems == ("Redis is away",)
    # One that is started meanwhile has nothing to serve; one that stops goes out, whatever it knows.
    fresh = await FleetHealth(directory, "c", (), KEY, lambda: now[0]).current()
    assert (fresh.ready, fresh.creates) == (False, False)
    health.stopping = True
    assert not (await health.current()).ready
    health.stopping = False
    directory.status = answers  # type: ignore[method-assign]
    now[0] += 2
    await directory.report(lease, WorkerReport())
    assert (await health.current()).creates


async def _away() -> DirectoryStatus:
    raise Unavailable("Redis is away")


@pytest.mark.parametrize(
    ("keys", "trusted"),
    [
        (OWN.public.text, True),
        (f"{OLD.public.text},{OWN.public.text}", True),  # while keys are exchanged
        (OTHER.public.text, False),  # made anew on that machine, under the same id
        (OLD.public.text, False),
    ],
    ids=["own", "both", "other", "old"],
)
def test_a_worker_with_other_keys_is_not_one_that_works(keys: str, trusted: bool) -> None:
    """O11: it showed as alive, and every create that met it was refused first."""
    (worker,) = workers(1, WorkerState.ALIVE)
    told = replace(
        worker, report=WorkerReport(keys=PublicKeys.parse(keys).fingerprints, problems=("the disk is full",))
    )
    status = DirectoryStatus("g", True, sessions=3, reservations=0)
    health = health_of("c", status, [told], [], KEY)
    assert (health.ready, health.creates) == (trusted, trusted)
    shown = fleet_body(status, [told], KEY).workers[0]
    assert shown.trusts is trusted
    # Both say what is wrong and what to do, and the worker's other problems are not lost.
    for problems in (health.problems, shown.problems):
        assert any("wrong keys" in problem for problem in problems) is not trusted
        assert (
            any(f"{KEY}. Add" in problem and "SANDLOT_FLEET_PUBLIC_KEYS" in problem for problem in problems)
            is not trusted
        )
        assert any("the disk is full" in problem for problem in problems)


def test_each_worker_says_how_far_it_is_with_an_environment() -> None:
    base, data = (EnvironmentInfo.of(Recipe(Environment(name, "an-image"))) for name in ("base", "data"))
    first, second, older = workers(3, WorkerState.ALIVE)
    ready = Readiness("w0", ReadinessState.READY, since=5.0, warm=3)
    failing = Readiness("w1", ReadinessState.FAILING, "The disk is full.", since=6.0)
    alive = [
        replace(first, report=WorkerReport(readiness={"base": ready})),
        replace(second, report=WorkerReport(readiness={"base": failing})),
        older,  # it has not reported yet, or its version does not say
    ]
    offered = with_readiness(Catalogue((base, data)), alive)
    assert [one.readiness for one in offered.environments] == [(ready, failing), ()]

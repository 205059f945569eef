"""Who is next: tenants take turns, and within a tenant the first comes first."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.domain.errors import Unavailable
from sandlot.worker.pool.fair_queue import FairQueue


def served(queue: FairQueue[int], count: int) -> None:
    for thing in range(count):
        assert queue.serve(thing)


async def test_within_a_tenant_first_come_first_served() -> None:
    queue: FairQueue[int] = FairQueue()
    waiters = [queue.join("a") for _ in range(3)]
    served(queue, 3)
    assert [waiter.result() for waiter in waiters] == [0, 1, 2]
    assert not queue.serve(3)


async def test_one_tenant_with_many_does_not_keep_others_waiting() -> None:
    queue: FairQueue[int] = FairQueue()
    flood = [queue.join("loud") for _ in range(100)]
    quiet = queue.join("quiet")
    served(queue, 2)
    assert flood[0].result() == 0
    assert quiet.result() == 1


async def test_one_that_gave_up_costs_its_tenant_no_turn() -> None:
    queue: FairQueue[int] = FairQueue()
    first_a, gave_up, b, second_a = (queue.join(tenant) for tenant in ("a", "b", "b", "a"))
    gave_up.cancel()
    served(queue, 3)
    assert [waiter.result() for waiter in (first_a, b, second_a)] == [0, 1, 2]


async def test_leaving_takes_one_out_of_the_line() -> None:
    queue: FairQueue[int] = FairQueue()
    leaver, stayer = queue.join("a"), queue.join("a")
    queue.leave("a", leaver)
    queue.leave("a", leaver)  # twice, and of a tenant that is not there, is nothing
    queue.leave("b", leaver)
    assert len(queue) == 1
    served(queue, 1)
    assert stayer.result() == 0
    assert not leaver.done()


async def test_nothing_is_kept_of_those_who_left() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(100):
        queue.leave(f"tenant-{number}", queue.join(f"tenant-{number}"))
    assert queue._queues == {}


async def test_failure_is_told_to_all_who_wait() -> None:
    queue: FairQueue[int] = FairQueue()
    waiters = [queue.join(tenant) for tenant in "aab"]
    queue.fail(Unavailable("stopping"))
    for waiter in waiters:
        with pytest.raises(Unavailable, match="stopping"):
            await waiter
    assert len(queue) == 0


# --- against a model --------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(st.just("join"), st.sampled_from("abc"))
    | st.tuples(st.just("serve"), st.just(""))
    | st.tuples(st.sampled_from(["leave", "cancel"]), st.integers(0, 30).map(str)),
    max_size=60,
)


class Model:
    """Tenants in a ring; a line without anybody who still waits has no turn."""

    def __init__(self) -> None:
        self.ring: deque[str] = deque()
        self.lines: dict[str, list[int]] = {}

    def join(self, tenant: str, number: int) -> None:
        if tenant not in self.ring:
            self.ring.append(tenant)
        self.lines.setdefault(tenant, []).append(number)

    def gave_up(self, number: int) -> None:
        for tenant, line in self.lines.items():
            if number in line:
                line.remove(number)
                if not line:
                    self.ring.remove(tenant)

    def serve(self) -> int | None:
        if not self.ring:
            return None
        tenant = self.ring.popleft()
        number = self.lines[tenant].pop(0)
        if self.lines[tenant]:
            self.ring.append(tenant)
        return number


@given(STEPS)
def test_as_the_model(steps: list[tuple[str, str]]) -> None:
    async def both() -> None:
        queue: FairQueue[str] = FairQueue()
        model = Model()
        waiters: list[tuple[str, asyncio.Future[str]]] = []
        for at, (step, what) in enumerate(steps):
            if step == "join":
                model.join(what, len(waiters))
                waiters.append((what, queue.join(what)))
            elif step == "serve":
                number = model.serve()
                assert queue.serve(f"thing {at}") == (number is not None)
                assert number is None or waiters[number][1].result() == f"thing {at}"
            elif int(what) < len(waiters):
                tenant, waiter = waiters[int(what)]
                model.gave_up(int(what))
                waiter.cancel()
                queue.leave(tenant, waiter)
            assert len(queue) == sum(map(len, model.lines.values()))
        done = [waiter.result() for _, waiter in waiters if waiter.done() and not waiter.cancelled()]
        assert len(done) == len(set(done))  # nothing was handed out twice

    asyncio.run(both())

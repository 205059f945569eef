"""One piece passes in each turn of the event loop, whatever is busy, and none waits for ever."""

from __future__ import annotations

import asyncio
from collections import Counter

from sandlot.worker.network.meter import PieceTurns


async def count_turns(turns: list[int]) -> None:
    while True:
        turns.append(0)
        await asyncio.sleep(0)


async def test_one_piece_passes_in_a_turn_and_all_pass_in_the_end() -> None:
    gate, turns, order = PieceTurns(), [0], list[int]()

    async def copy(name: int) -> None:
        for _ in range(10):
            await gate.take()
            turns[-1] += 1
            order.append(name)

    counting = asyncio.create_task(count_turns(turns))
    async with asyncio.timeout(10):
        await asyncio.gather(*(copy(name) for name in range(20)))
    counting.cancel()
    assert sum(turns) == 200
    assert max(turns) == 1
    shares = Counter(order[:100])
    assert min(shares.values()) >= 4, f"some connections waited while others did not: {shares}"


async def test_a_connection_that_is_given_up_keeps_nobody_waiting() -> None:
    gate = PieceTurns()
    await gate.take()
    given_up, kept = asyncio.create_task(gate.take()), asyncio.create_task(gate.take())
    await asyncio.sleep(0)
    given_up.cancel()
    async with asyncio.timeout(10):
        await kept


async def test_it_rests_when_nothing_is_copied() -> None:
    gate, loop = PieceTurns(), asyncio.get_running_loop()
    await gate.take()
    await asyncio.sleep(0.01)
    called = 0
    real = loop.call_soon

    def call_soon(*args: object, **kwargs: object) -> asyncio.Handle:
        nonlocal called
        called += 1
        return real(*args, **kwargs)  # type: ignore[arg-type]

    loop.call_soon = call_soon  # type: ignore[method-assign]
    try:
        await asyncio.sleep(0.01)
    finally:
        loop.call_soon = real  # type: ignore[method-assign]
    assert called < 5

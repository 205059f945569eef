"""Two servers in turn: one with keys, tenants and history, one without any of them."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from bench.rig import p50, progress
from bench.server import Served, serving
from sandlot import AsyncClient, AsyncSession
from sandlot.client.http.administrator import Administrator
from sandlot.wire.key_bodies import CreateKeyBody

WARM_UP = 10
# As an AI agent paces its commands. Back-to-back commands would measure how the sandbox's half core is
# throttled, and creates how fast the pool fills.
EXEC_PACE_S = 0.02
CREATE_PACE_S = 0.4
RECORDING_PACE_S = 0.05
AT_ONCE = 8
FILE = "history.sqlite3"


@asynccontextmanager
async def plain() -> AsyncIterator[AsyncClient]:
    async with serving(history="false", pool_size=4) as served, served.client() as client:
        yield client


@asynccontextmanager
async def recorded(**settings: object) -> AsyncIterator[tuple[Served, AsyncClient]]:
    """A user with a key of its own, on a server that records what it does."""
    key = secrets.token_hex(16)
    async with serving(api_key=key, pool_size=4, **settings) as served:
        administrator = Administrator(served.url, key)
        new = await administrator.create_key(CreateKeyBody("bench", "acme"))
        await administrator.close()
        async with AsyncClient(served.url, api_key=new.secret) as client:
            yield served, client


async def ratios(rounds: int) -> dict[str, float]:
    """How many times longer an exec and a create take with everything than without."""
    async with plain() as without, recorded() as (_, recording):
        execs = await _execs(without, recording, rounds)
        creates = await _creates(without, recording, max(20, rounds // 5))
    return {
        "exec_without_ms": p50(execs[0]),
        "exec_with_ms": p50(execs[1]),
        "exec_ratio": p50(execs[1]) / p50(execs[0]),
        "create_without_ms": p50(creates[0]),
        "create_with_ms": p50(creates[1]),
        "create_ratio": p50(creates[1]) / p50(creates[0]),
    }


async def _execs(without: AsyncClient, recording: AsyncClient, rounds: int) -> list[list[float]]:
    progress(f"execs, {rounds} rounds")
    async with without.create() as first, recording.create(env={"TOKEN": secrets.token_hex(16)}) as second:

        async def run(session: AsyncSession) -> None:
            assert (await session.run(["echo", "hi"])).ok

        return await _in_turn([lambda: run(first), lambda: run(second)], rounds, EXEC_PACE_S)


async def _creates(without: AsyncClient, recording: AsyncClient, rounds: int) -> list[list[float]]:
    progress(f"creates, {rounds} rounds")
    made: list[AsyncSession] = []

    async def create(client: AsyncClient) -> None:
        made.append(await client.create())

    async def tidy() -> None:
        while made:
            await made.pop().delete()

    return await _in_turn([lambda: create(without), lambda: create(recording)], rounds, CREATE_PACE_S, tidy)


async def _in_turn(
    works: list[Callable[[], Awaitable[None]]],
    rounds: int,
    pace_s: float,
    after: Callable[[], Awaitable[None]] | None = None,
) -> list[list[float]]:
    """The milliseconds of each work. Which one begins changes with each round."""
    samples: list[list[float]] = [[] for _ in works]
    for number in range(rounds + WARM_UP):
        places = range(len(works)) if number % 2 else reversed(range(len(works)))
        for place in places:
            began = time.perf_counter()
            await works[place]()
            spent_ms = (time.perf_counter() - began) * 1000
            if number >= WARM_UP:
                samples[place].append(spent_ms)
            await asyncio.sleep(pace_s)
        if after is not None:
            await after()
    return samples


async def recording_ratios(rounds: int) -> dict[str, float]:
    """How many times longer a command takes in a session that is recorded, by how much it writes."""
    found: dict[str, float] = {}
    async with (
        # The masked value makes the work, and no bound ends it.
        serving(pool_size=4, recordings_max_session_bytes=2**30, recordings_max_bytes=2**31) as served,
        served.client() as client,
        client.create(env={"TOKEN": secrets.token_hex(16)}) as plain_session,
        client.create(env={"TOKEN": secrets.token_hex(16)}, record=True) as recorded_session,
    ):
        for size, times in ((3, rounds), (100_000, rounds // 2), (1_000_000, rounds // 5)):
            progress(f"{times} commands that write {size} bytes, recorded and not")
            command = f"yes 'a line of output' | head -c {size}"

            async def run(session: AsyncSession, command: str = command, size: int = size) -> None:
                assert len((await session.run(command)).stdout) == size

            works = [partial(run, plain_session), partial(run, recorded_session)]
            without, recording = await _in_turn(works, times, RECORDING_PACE_S)
            found |= {
                f"{size}_bytes_without_ms": p50(without),
                f"{size}_bytes_recorded_ms": p50(recording),
                f"{size}_bytes_ratio": p50(recording) / p50(without),
            }
    return found


async def size_after(execs: int, max_bytes: int) -> dict[str, float]:
    """The size of the history after many commands, where it may have ``max_bytes``."""
    progress(f"{execs} execs on a server whose history may have {max_bytes} bytes")
    largest = 0
    async with recorded(history_max_bytes=max_bytes) as (served, client), client.create() as session:

        async def run(count: int) -> None:
            nonlocal largest
            for _ in range(count):
                assert (await session.run(["true"])).ok
                largest = max(largest, _size(served.data_dir))

        await asyncio.gather(*(run(execs // AT_ONCE) for _ in range(AT_ONCE)))
        events = sum([1 async for _ in session.history()])
    return {"execs": execs // AT_ONCE * AT_ONCE, "events_kept": events, "largest_bytes": largest}


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob(f"{FILE}*"))

"""All that ``python -m bench.workspaces`` measures, on a btrfs storage and servers of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from bench.rig import p50, progress
from bench.server import Served, serving
from bench.workspaces.filling import fill
from bench.workspaces.peers import measure_peers
from bench.workspaces.storage import Storage, open_storage
from sandlot import AsyncClient, AsyncSession

PARTS: Final = ("tree", "creates", "line", "hibernation")
POOL, PLAIN_POOL = 12, 4
# The server makes the next copy of a snapshot this long after the last one at most, on a quiet machine.
COPIED_WITHIN_S = 1.0
FORKS = 10
AT_ONCE = 50
STEP = 50  # snapshots of a long line in one sample
CHANGED_BYTES = 16 * 1024  # before each of them, in one of these files
CHANGED_FILES = 20
LOOKED_AT = "ls data | wc -l; cat data/changed; stat -c %s data/0/0.bin"  # what a fork answers
HIBERNATED_WITHIN_S = 60.0


@dataclass
class Figures:
    """Samples in ms, unless the name says otherwise. ``peers``: what others need for the same tree."""

    files: int = 0
    megabytes: int = 0
    snapshot: list[float] = field(default_factory=list)
    restore: list[float] = field(default_factory=list)
    forks_s: list[float] = field(default_factory=list)
    peers: dict[str, float] = field(default_factory=dict)
    create: list[float] = field(default_factory=list)  # from the pool, on Docker volumes
    btrfs_create: list[float] = field(default_factory=list)  # ... on btrfs, with new files
    swapped_create: list[float] = field(default_factory=list)  # ... with the files of a snapshot used before
    copied_create: list[float] = field(default_factory=list)  # ... of a snapshot that is used the first time
    first_output: list[float] = field(default_factory=list)  # a create and its first command
    resumed_output: list[float] = field(default_factory=list)  # the first command of a hibernated session
    at_once_s: float = 0.0
    hibernated: int = 0
    containers_while_hibernated: int = 0
    line_create: list[float] = field(default_factory=list)  # medians along a long line of snapshots
    line_delete: list[float] = field(default_factory=list)
    line_growth_bytes: int = 0
    line_changed_bytes: int = 0

    def summary(self) -> dict[str, float]:
        """Of the parts that were measured."""
        found = {}
        if self.snapshot:
            found["snapshot_ms"] = p50(self.snapshot)
            found["restore_ms"] = p50(self.restore)
            found["ten_forks_s"] = p50(self.forks_s)
        if self.create:
            found["create_ratio"] = p50(self.swapped_create) / p50(self.create)
            found["resume_ratio"] = p50(self.resumed_output) / p50(self.first_output)
        return found


async def measure(
    *, parts: Collection[str], rounds: int, files: int, megabytes: int, snapshots: int, threads: int
) -> Figures:
    figures = Figures(files, megabytes)
    with open_storage(gigabytes=8) as storage:
        settings = {"workspace_store": "btrfs", "storage_dir": storage.folder, "pool_size": POOL}
        settings |= {"max_sessions": threads + 100, "create_concurrency": 4, "snapshots_per_session": 5000}
        async with (
            serving(**settings) as served,
            served.client() as client,
            serving(workspace_store="volume", pool_size=PLAIN_POOL) as plain,
            plain.client() as plain_client,
        ):
            if "tree" in parts:
                await _large_tree(figures, served, client, storage, rounds)
            # The kernel frees the large trees in the background, for longer than any create takes.
            await asyncio.to_thread(storage.settle)
            if "creates" in parts:
                await _creates(figures, client, plain, plain_client, served, rounds)
            if "line" in parts:
                await _long_line(figures, client, storage, snapshots)
            if "hibernation" in parts:
                await _hibernation(figures, served, client, threads)
    return figures


async def _large_tree(
    figures: Figures, served: Served, client: AsyncClient, storage: Storage, rounds: int
) -> None:
    progress(f"{figures.files} files, {figures.megabytes} MB: snapshots, restores, forks")
    await served.wait_warm(POOL)
    async with _session(client) as session:
        await fill(session, files=figures.files, megabytes=figures.megabytes)
        snapshot = await session.workspace.snapshot("base")
        for number in range(rounds):
            assert (await session.run(f"echo {number} > data/changed")).exit_code == 0
            figures.snapshot.append(await _timed(session.workspace.snapshot))
            await served.wait_warm(2)
            figures.restore.append(await _timed(lambda: session.workspace.restore(snapshot.id)))
        tree = (await session.run(f"echo parent > data/changed; {LOOKED_AT}")).stdout
        assert "parent" in tree, tree
        for _ in range(max(1, rounds // 4)):
            await served.wait_warm(POOL)
            figures.forks_s.append(await _timed(lambda: _forks_that_answer(session, tree)) / 1000)
        progress("the same tree by cp, docker commit and tar")
        sandbox = session.info.sandbox_id
        figures.peers = await asyncio.to_thread(measure_peers, f"sandlot-{sandbox}", storage.copies)


async def _forks_that_answer(session: AsyncSession, tree: str) -> None:
    forks = await session.fork(FORKS)
    answers = await asyncio.gather(*(fork.run(LOOKED_AT) for fork in forks))
    assert [answer.stdout for answer in answers] == [tree] * FORKS
    await asyncio.gather(*(fork.delete() for fork in forks))


async def _creates(
    figures: Figures,
    client: AsyncClient,
    plain: Served,
    plain_client: AsyncClient,
    served: Served,
    rounds: int,
) -> None:
    """Taken in turn and with full pools, so that what else the machine does meets all of them."""
    progress("creates from the pool, creates with files swapped in, resumes")
    async with _session(client) as session, _session(client) as sleeper:
        await session.run("mkdir a; seq 1000 > a/b")
        used = await session.workspace.snapshot()
        await _created_in(client, snapshot=used.id)

        async def quiet() -> None:
            await plain.wait_warm(PLAIN_POOL)
            await served.wait_warm(POOL)
            await asyncio.sleep(COPIED_WITHIN_S)

        async def resumed() -> float:
            await sleeper.hibernate()
            await quiet()
            return await _timed(lambda: sleeper.run("echo hi"))

        async def copied() -> float:
            fresh = await session.workspace.snapshot()
            return await _created_in(client, snapshot=fresh.id)

        taken: list[tuple[list[float], Callable[[], Awaitable[float]]]] = [
            (figures.create, lambda: _created_in(plain_client)),
            (figures.swapped_create, lambda: _created_in(client, snapshot=used.id)),
            (figures.btrfs_create, lambda: _created_in(client)),
            (figures.copied_create, copied),
            (figures.first_output, lambda: _timed(lambda: _first_output(client))),
            (figures.resumed_output, resumed),
        ]
        for number in range(2 * rounds):
            begin = number % len(taken)  # another one first each time
            for samples, take in taken[begin:] + taken[:begin]:
                await quiet()
                samples.append(await take())


async def _created_in(client: AsyncClient, **options: str) -> float:
    began = time.perf_counter()
    session = await client.create(**options)  # type: ignore[arg-type]
    took = 1000 * (time.perf_counter() - began)
    await session.delete()
    return took


async def _first_output(client: AsyncClient) -> None:
    session = await client.create()
    assert (await session.run("echo hi")).output == "hi\n"
    asyncio.get_running_loop().create_task(session.delete()).add_done_callback(lambda _: None)


async def _long_line(figures: Figures, client: AsyncClient, storage: Storage, snapshots: int) -> None:
    progress(f"{snapshots} snapshots of one workspace, each after a change")
    async with _session(client) as session:
        await session.run("head -c 100M /dev/urandom > large; sync")
        before, taken = storage.used_bytes(), []
        samples: list[float] = []
        for number in range(snapshots):
            await session.run(f"head -c {CHANGED_BYTES} /dev/urandom > changed{number % CHANGED_FILES}")
            figures.line_changed_bytes += CHANGED_BYTES
            began = time.perf_counter()
            taken.append((await session.workspace.snapshot()).id)
            samples.append(1000 * (time.perf_counter() - began))
        figures.line_create = _medians(samples)
        figures.line_growth_bytes = storage.used_bytes() - before
        samples = [await _timed(lambda name=name: client.delete_snapshot(name)) for name in taken]  # type: ignore[misc]
        figures.line_delete = _medians(samples)


def _medians(samples: list[float]) -> list[float]:
    return [p50(samples[begin : begin + STEP]) for begin in range(0, len(samples), STEP)]


async def _hibernation(figures: Figures, served: Served, client: AsyncClient, threads: int) -> None:
    progress(f"{threads} hibernated threads, {AT_ONCE} resumed at once")
    sessions = []
    for number in range(threads):
        session = await client.create(thread=f"t{number}")
        assert (await session.run(f"echo {number} > mine")).exit_code == 0
        await session.hibernate()
        sessions.append(session)
    assert {session.info.sandbox_id for session in sessions} == {None}
    figures.hibernated = threads
    figures.containers_while_hibernated = await _containers_beside_the_pool(served, client)
    some = sessions[: min(AT_ONCE, threads)]
    began = time.perf_counter()
    answers = await asyncio.gather(*(session.run("cat mine") for session in some))
    figures.at_once_s = time.perf_counter() - began
    assert [answer.output for answer in answers] == [f"{number}\n" for number in range(len(some))]
    for session in sessions:
        await session.delete()


async def _containers_beside_the_pool(served: Served, client: AsyncClient) -> int:
    """Once the pool is filled again, and what was destroyed is gone."""
    deadline = time.monotonic() + HIBERNATED_WITHIN_S
    while True:
        beside = served.containers() - (await client.health()).pools["base"].ready
        if beside == 0 or time.monotonic() > deadline:
            return beside
        await asyncio.sleep(0.5)


@asynccontextmanager
async def _session(client: AsyncClient) -> AsyncIterator[AsyncSession]:
    session = await client.create(lifetime_s=7200)
    try:
        yield session
    finally:
        await session.delete()


async def _timed(call: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await call()
    return 1000 * (time.perf_counter() - began)

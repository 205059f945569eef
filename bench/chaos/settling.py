"""Records what the engine, the directory and the API hold once all has settled."""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace

from bench.chaos.answers import to_listed
from bench.chaos.history import LOG, Ending, Event, Listed, Recorder
from bench.chaos.sessions import disagreements
from bench.fleet.rig import Fleet
from bench.rig import docker, progress
from sandlot.domain.errors import SandlotError
from sandlot.domain.session import DEFAULT_TENANT

# A busy engine sometimes takes more than a minute to remove a sandbox.
SETTLED_WITHIN_S = 120.0
LOG_ATTEMPTS = 5
# Log lines of unexpected errors, which a member must never write.
UNEXPECTED = re.compile(r"Traceback|request failed|never retrieved|never awaited")
LINES_SHOWN = 20


async def settle(fleet: Fleet, recorder: Recorder, clock: Callable[[], float]) -> None:
    """Records the logs inside the sandboxes, then the final state, and removes all sessions."""
    ending = await _wait_settled(fleet)
    for session in next(iter(ending.listed.values())):
        if session.sandbox is not None:
            lines = await asyncio.to_thread(_log_inside, session.sandbox)
            recorder.add(
                Event(
                    "inside",
                    clock(),
                    session=session.id,
                    generation=session.generation,
                    lines=lines,
                )
            )
    left = await _remove_all(fleet)
    recorder.add(Event("end", clock(), ending=replace(ending, left=left)))
    for member in fleet.members:
        for line in _unexpected_lines(member.log.read_text(errors="replace")):
            recorder.add(Event("log", clock(), target=member.name, message=line))


async def _wait_settled(fleet: Fleet) -> Ending:
    deadline = time.monotonic() + SETTLED_WITHIN_S
    while True:
        try:
            ending = await _observe(fleet)
        except SandlotError:
            if time.monotonic() > deadline:
                raise
        else:
            if not list(disagreements(ending)) or time.monotonic() > deadline:
                return ending
        await asyncio.sleep(0.5)


async def _observe(fleet: Fleet) -> Ending:
    listed: dict[str, tuple[Listed, ...]] = {}
    for number, coordinator in enumerate(fleet.coordinators):
        async with fleet.client(number) as client:
            listed[coordinator.name] = tuple([to_listed(session.info) async for session in client.sessions()])
    directory = fleet.directory()
    recorded: dict[str, str | None] = {}
    workspaces: dict[str, str] = {}
    after: str | None = None
    try:
        while True:
            page = await directory.page(DEFAULT_TENANT, after=after)
            sessions = [found.session for found in page.found]
            recorded |= {session.id: session.sandbox_id for session in sessions}
            workspaces |= {session.id: session.workspace.id for session in sessions if session.workspace}
            if page.next is None:
                break
            after = page.next
        statuses = {status.ref.id: status for status in await directory.workers()}
    finally:
        await directory.close()
    warm = {}
    for worker in fleet.workers:
        report = statuses[worker.id].report if worker.id in statuses else None
        warm[worker.name] = sum(room.warm for room in report.room.values()) if report else 0
    return Ending(
        listed=listed,
        directory=recorded,
        workspaces=workspaces,
        containers={worker.name: await asyncio.to_thread(worker.containers) for worker in fleet.workers},
        volumes={worker.name: await asyncio.to_thread(worker.volumes) for worker in fleet.workers},
        warm=warm,
    )


def _log_inside(sandbox: str) -> tuple[str, ...]:
    """Reads the log through the engine, around all of Sandlot.

    Retries, because the engine may fail.
    """
    for attempt in range(1, LOG_ATTEMPTS + 1):
        try:
            printed = docker("exec", f"sandlot-{sandbox}", "cat", LOG).stdout
        except subprocess.CalledProcessError as error:
            if b"No such file" in error.stderr:
                break  # no command has run in this sandbox
            progress(f"not read: {error.stderr!r}")
            if attempt < LOG_ATTEMPTS:
                time.sleep(1)
        else:
            return tuple(printed.decode().split())
    return ()


async def _remove_all(fleet: Fleet) -> tuple[str, ...]:
    """Deletes every session and returns what is left besides the pools."""
    deadline = time.monotonic() + SETTLED_WITHIN_S
    while True:
        left: tuple[str, ...] = ()
        try:
            async with fleet.client() as client:
                for session in [session async for session in client.sessions()]:
                    await session.delete()
            ending = await _observe(fleet)
        except SandlotError as error:
            left = (error.message,)
        else:
            left = tuple(str(violation) for violation in disagreements(ending))
            left += tuple(f"session {session}" for session in ending.directory)
        if not left or time.monotonic() > deadline:
            return left
        progress(f"left so far: {len(left)}")
        await asyncio.sleep(0.5)


def _unexpected_lines(log: str) -> list[str]:
    return [line[:500] for line in log.splitlines() if UNEXPECTED.search(line)][:LINES_SHOWN]

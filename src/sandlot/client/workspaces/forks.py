"""New sessions that begin with a session's files: from one snapshot, all or none."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Final, Literal, TypedDict

from sandlot.client.keywords import SESSION_HINTS, check_keywords
from sandlot.client.options import parse_on_idle, thread_key
from sandlot.client.volumes.async_volumes import VolumeModes, volume_uses
from sandlot.domain.capacity.limits import LimitChange
from sandlot.domain.errors import Conflict, InvalidRequest, SandlotError
from sandlot.domain.service import Opened, SandboxService
from sandlot.domain.session import NEVER, CreateSession, OnIdle, Session, Timeout
from sandlot.domain.volumes.volume import VolumeMode, VolumeUse
from sandlot.domain.workspaces.snapshots import TakeSnapshot

# Marks the snapshot that forks were made from.
FORK_LABEL: Final = "sandlot.fork"
# How many creates of one fork are under way at once: more would only wait in the server's queue.
MAX_CREATES_AT_ONCE: Final = 16
MAX_FORKS: Final = 1000


class ForkOptions(TypedDict, total=False):
    """Options of ``fork``.

    threads: the conversations that the new sessions belong to, one session for each. They must have none yet.
    env: variables for every command of the new sessions. Those of the parent are not copied: only the
        server knows them.
    metadata: your own names and values, in place of the parent's.
    idle_timeout_s, lifetime_s: seconds, or NEVER where the server allows it. They default to the
        parent's.
    on_idle: "hibernate" or "end". It defaults to the parent's.
    keep_snapshot: keep the snapshot that the forks began from, under the label ``sandlot.fork``.
    volumes: what the new sessions get in place of the parent's volumes, which they get with the mode "ro":
        only one session can write to a volume. {} means none.
    """

    threads: Sequence[str]
    env: Mapping[str, str]
    metadata: Mapping[str, str]
    idle_timeout_s: Timeout | None
    lifetime_s: Timeout | None
    on_idle: OnIdle | Literal["hibernate", "end"] | None
    keep_snapshot: bool
    volumes: VolumeModes


def fork_requests(parent: Session, count: int, options: ForkOptions) -> list[CreateSession]:
    """One request for each fork, without the snapshot, which is taken once these are known to be valid."""
    check_keywords("fork", options, {*ForkOptions.__annotations__, "count"}, SESSION_HINTS)
    threads: list[str | None] = [None] * count
    if "threads" in options:
        threads = _thread_keys(options["threads"], count)
    if not 1 <= len(threads) <= MAX_FORKS:
        raise InvalidRequest(f"fork() makes 1 to {MAX_FORKS} sessions, not {len(threads)}.")
    return [
        CreateSession(
            environment=parent.environment,
            thread=thread,
            env=options.get("env") or {},
            limits=LimitChange(**asdict(parent.limits)),
            idle_timeout_s=_timeout(options.get("idle_timeout_s"), parent.idle_timeout_s),
            lifetime_s=_timeout(options.get("lifetime_s"), parent.lifetime_s),
            metadata=options.get("metadata", parent.metadata),
            record=parent.record,
            network=parent.network,
            on_idle=parse_on_idle(options.get("on_idle")) or parent.on_idle,
            volumes=_volumes(parent, options),
        )
        for thread in threads
    ]


def _thread_keys(threads: Sequence[str], count: int) -> list[str | None]:
    if isinstance(threads, str):
        raise InvalidRequest("threads must be a list of thread ids, one for each fork, not a single text.")
    keys: list[str | None] = [thread_key(thread) for thread in threads]
    if count not in (1, len(keys)):
        raise InvalidRequest(f"fork() got {len(keys)} threads for {count} forks. Leave out the count.")
    if len(set(keys)) < len(keys):
        raise InvalidRequest("Each fork needs a thread of its own, but threads names one twice.")
    return keys


def _volumes(parent: Session, options: ForkOptions) -> tuple[VolumeUse, ...]:
    if "volumes" in options:
        return volume_uses(options["volumes"])
    return tuple(VolumeUse(volume.id, VolumeMode.RO) for volume in parent.volumes)


def _timeout(asked: Timeout | None, of_parent: float | None) -> Timeout:
    if asked is not None:
        return asked
    return NEVER if of_parent is None else of_parent


async def take_fork_snapshot(service: SandboxService, session_id: str) -> str:
    return (await service.take_snapshot(session_id, TakeSnapshot(labels={FORK_LABEL: "true"}))).id


async def create_all(service: SandboxService, requests: Sequence[CreateSession]) -> list[Session]:
    """Create all of these sessions at once. If one fails, or this is cancelled, none is left."""
    places = asyncio.Semaphore(MAX_CREATES_AT_ONCE)
    failed = False

    async def create(request: CreateSession) -> Opened | None:
        nonlocal failed
        async with places:
            if failed:
                return None
            try:
                return await service.create_session(request)
            except BaseException:
                failed = True
                raise

    tasks = [asyncio.create_task(create(request)) for request in requests]
    try:
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        created = [opened for task in tasks if (opened := task.result()) is not None]
        for opened in created:
            if not opened.created:
                raise Conflict(
                    f"Thread {opened.session.thread!r} already has a session. Delete it, or fork to another "
                    "thread.",
                    details={"session_id": opened.session.id},
                )
    except BaseException:
        failed = True
        # Creates that are under way are waited for: nobody else will ever know their sessions.
        await asyncio.shield(asyncio.ensure_future(_end_all(service, tasks)))
        raise
    return [opened.session for opened in created]


async def _end_all(service: SandboxService, tasks: Sequence[asyncio.Task[Opened | None]]) -> None:
    results = await asyncio.gather(*tasks, return_exceptions=True)
    created = [each.session.id for each in results if isinstance(each, Opened) and each.created]
    await asyncio.gather(*(_delete(service, session_id) for session_id in created))


async def _delete(service: SandboxService, session_id: str) -> None:
    # The caller gets the error that all of this is about. The session's own timeouts end it.
    with contextlib.suppress(SandlotError):
        await service.delete_session(session_id)


async def forget_snapshot(service: SandboxService, snapshot_id: str) -> None:
    """Delete a snapshot that has served its purpose.

    If that fails, its age deletes it: what it was taken for is done and must not be lost.
    """
    with contextlib.suppress(SandlotError):
        await service.delete_snapshot(snapshot_id)

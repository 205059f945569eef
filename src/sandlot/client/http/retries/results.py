"""Gets a command's result despite broken connections: asks by exec id before it sends again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sandlot.client.http.retries.creates import Patience
from sandlot.client.http.retries.rules import TRIES, OutageLimit, backoff
from sandlot.domain.errors import (
    Busy,
    LinkInterrupted,
    NotFound,
    SandboxLost,
    SandlotError,
    SessionEnded,
    Unavailable,
)

T = TypeVar("T")


async def until_result(
    exec_id: str,
    post: Callable[[], Awaitable[T]],
    fetch_result: Callable[[], Awaitable[T | None]],
    patience: Patience,
    max_outage_s: float,
) -> T:
    """Post a command and return its result, across broken connections.

    ``patience``: how long to wait for a server that refuses to start the command. ``max_outage_s``: how
    long to wait for one that does not answer while the command may be running.
    """
    posts = 0
    while True:
        posts += 1
        try:
            result = await post()
        except (LinkInterrupted, Unavailable, Busy) as error:
            broken = error
        else:
            patience.succeeded()
            return result
        if broken.may_have_executed:
            if (
                found := await _fetch_until_known(exec_id, fetch_result, OutageLimit(max_outage_s))
            ) is not None:
                return found
            if posts >= TRIES:
                raise broken
        else:
            pause = patience.pause_after(broken)
            if pause is None:
                raise broken
            await asyncio.sleep(pause)


async def _fetch_until_known(
    exec_id: str, fetch_result: Callable[[], Awaitable[T | None]], outage_limit: OutageLimit
) -> T | None:
    """Return the result of an exec that may be running.

    None means that the server does not know the exec, so it never ran.
    """
    while True:
        try:
            if (result := await fetch_result()) is not None:
                return result
            outage_limit.reset()
        except (SessionEnded, SandboxLost) as error:
            error.may_have_executed = True
            raise
        except NotFound:
            return None
        except (LinkInterrupted, Unavailable, Busy) as error:
            if outage_limit.exceeded(error):
                raise may_be_running(exec_id, error) from error
            # Each failure already includes several tries, and a restarting server takes seconds.
            await asyncio.sleep(backoff(outage_limit.breaks + 2))


def may_be_running(exec_id: str, error: SandlotError) -> LinkInterrupted:
    return LinkInterrupted(
        f"{error.message.removesuffix('.')}. Exec {exec_id} may still be running. Ask for its result by "
        "this id.",
        details={"exec_id": exec_id},
    )

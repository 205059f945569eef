"""A command's result over connections that break: asked for by the exec's id before it is sent again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sandlot.client.http.opening import Waiting
from sandlot.client.http.retries import TRIES, Patience, backoff
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
    ask: Callable[[], Awaitable[T | None]],
    waiting: Waiting,
    away_s: float,
) -> T:
    """``waiting``: the patience with a server that refuses to begin. ``away_s``: with one that does not
    answer while the command may be running.
    """
    posts = 0
    while True:
        posts += 1
        try:
            result = await post()
        except (LinkInterrupted, Unavailable, Busy) as error:
            broken = error
        else:
            waiting.done()
            return result
        if broken.may_have_executed:
            if (found := await _ask_until_known(exec_id, ask, Patience(away_s))) is not None:
                return found
            if posts >= TRIES:
                raise broken
        else:
            pause = waiting.pause_after(broken)
            if pause is None:
                raise broken
            await asyncio.sleep(pause)


async def _ask_until_known(
    exec_id: str, ask: Callable[[], Awaitable[T | None]], patience: Patience
) -> T | None:
    """The result of an exec that may be running; None if the server does not know it: then it never ran."""
    while True:
        try:
            if (result := await ask()) is not None:
                return result
            patience.renew()
        except (SessionEnded, SandboxLost) as error:
            error.may_have_executed = True
            raise
        except NotFound:
            return None
        except (LinkInterrupted, Unavailable, Busy) as error:
            if patience.over(error):
                raise may_be_running(exec_id, error) from error
            # Each of these was several tries already; a server that is started again takes seconds.
            await asyncio.sleep(backoff(patience.breaks + 2))


def may_be_running(exec_id: str, error: SandlotError) -> LinkInterrupted:
    return LinkInterrupted(
        f"{error.message}; exec {exec_id} may be running: ask for it by its id", details={"exec_id": exec_id}
    )

"""Commands that end with their caller: for frameworks in which a cancelled call leaves nothing running.

An exec does not depend on who waits for it. Where a framework promises that it does, it is killed here.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, Unpack

import anyio

from sandlot.client.async_session import AsyncSession
from sandlot.client.options import Command, ExecOptions
from sandlot.client.result import Result
from sandlot.domain.errors import NotFound, SandlotError
from sandlot.domain.ids import new_exec_id

# A caller that was cancelled is held up no longer than this; its command has a timeout all the same.
KILL_WITHIN_S: Final = 5.0
# The cancelled request may still be on its way to the server.
KNOWN_WITHIN_S: Final = 0.5


async def run_foreground(
    session: AsyncSession,
    command: Command,
    *,
    stdin: bytes | str | None = None,
    **options: Unpack[ExecOptions],
) -> Result:
    exec_id = options["exec_id"] = options.get("exec_id") or new_exec_id()
    try:
        return await session.run(command, stdin=stdin, **options)
    except asyncio.CancelledError:
        await kill_unwanted(session, exec_id)
        raise


async def kill_unwanted(session: AsyncSession, exec_id: str) -> None:
    """Even if the caller is cancelled. Nobody is left to be told of an error: the timeout ends it then."""
    with anyio.move_on_after(KILL_WITHIN_S, shield=True), contextlib.suppress(SandlotError):
        execution = await session.exec(exec_id)
        deadline = anyio.current_time() + KNOWN_WITHIN_S
        while True:
            try:
                await execution.kill()
            except NotFound:
                if anyio.current_time() >= deadline:
                    return
                await anyio.sleep(0.05)
            else:
                return

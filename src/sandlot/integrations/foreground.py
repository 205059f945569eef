"""Commands that end with their caller, for frameworks in which a cancelled call ends its command.

By default an exec continues when its caller stops waiting. Some frameworks promise the opposite, so
this module kills the exec for them.
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

# The longest delay for a cancelled caller. If the kill fails, the command's own timeout ends it.
KILL_TIMEOUT_S: Final = 5.0
# The cancelled request may still be in flight, so the server may not know the exec yet.
EXEC_VISIBLE_WITHIN_S: Final = 0.5


async def run_foreground(
    session: AsyncSession,
    command: Command,
    *,
    stdin: bytes | str | None = None,
    **options: Unpack[ExecOptions],
) -> Result:
    """Run a command and kill it if the caller is cancelled."""
    exec_id = options["exec_id"] = options.get("exec_id") or new_exec_id()
    try:
        return await session.run(command, stdin=stdin, **options)
    except asyncio.CancelledError:
        await kill_abandoned(session, exec_id)
        raise


async def kill_abandoned(session: AsyncSession, exec_id: str) -> None:
    """Kill an exec whose caller has gone, even while the caller is being cancelled.

    Errors are suppressed because no caller is left to handle them. The exec's timeout then ends it.
    """
    with anyio.move_on_after(KILL_TIMEOUT_S, shield=True), contextlib.suppress(SandlotError):
        execution = await session.exec(exec_id)
        deadline = anyio.current_time() + EXEC_VISIBLE_WITHIN_S
        while True:
            try:
                await execution.kill()
            except NotFound:
                if anyio.current_time() >= deadline:
                    return
                await anyio.sleep(0.05)
            else:
                return

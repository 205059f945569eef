"""``sandlot mcp``: one client, on our input and output; the sandbox ends with the process.

A client ends us by closing our input, and by a signal if that takes too long. Both are the same to us: the
input is over, what runs is given up, and the sandbox is deleted.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from typing import Final

from sandlot.client.async_client import AsyncClient
from sandlot.integrations.mcp.server import build_mcp
from sandlot.integrations.mcp.whose import OneForTheProcess

# Clients wait about two seconds before they send a signal, and two more before they kill.
LAST_ANSWERS_S: Final = 0.5
STDIN: Final = 0
PIECE_BYTES: Final = 64 * 1024


async def serve_stdio(
    client: AsyncClient, *, thread: str | None = None, environment: str | None = None
) -> None:
    """Until the input ends or a signal comes. With a ``thread`` its sandbox is used, and stays."""
    sandbox = OneForTheProcess(client, thread=thread, environment=environment)
    server = build_mcp(sandbox, await client.catalogue())
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    end_input = _input_that_can_end(lambda: loop.call_soon_threadsafe(over.set))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, end_input)
    serving = asyncio.create_task(server.run_stdio_async(), name="mcp over stdio")
    waiting = asyncio.create_task(over.wait())
    try:
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        # A client that has stopped reading would hold the last answers up for ever, and the sandbox with it.
        await asyncio.wait({serving}, timeout=LAST_ANSWERS_S)
    finally:
        waiting.cancel()
        await sandbox.end()
    await serving


def _input_that_can_end(ended: Callable[[], object]) -> Callable[[], None]:
    """Puts a pipe before our input. The function that is returned ends it, whatever the client does.

    The protocol's library reads in a thread that cannot be interrupted, so a signal alone would have to wait
    for the client's next message.
    """
    real = os.dup(STDIN)
    reading, writing = os.pipe()
    os.dup2(reading, STDIN)
    os.close(reading)
    nothing = os.open(os.devnull, os.O_WRONLY)

    def end() -> None:
        # In place, so that the thread below never writes to a number that means something else by then.
        os.dup2(nothing, writing)
        ended()

    def pass_on() -> None:
        try:
            while piece := os.read(real, PIECE_BYTES):
                rest = memoryview(piece)
                while rest:
                    rest = rest[os.write(writing, rest) :]
        except OSError:
            pass  # a terminal that is gone, or nobody reads any more: either way it is over
        end()

    threading.Thread(target=pass_on, name="stdin", daemon=True).start()
    return end

"""``sandlot mcp``: serves one client on stdin and stdout. The sandbox ends with the process.

A client stops the process by closing stdin, and sends a signal if that takes too long. The process
treats both alike: it ends the input, abandons running calls and deletes the sandbox.
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
from sandlot.integrations.mcp.thread_binding import ProcessBinding

# Clients wait about 2 s before they send a signal, and 2 s more before they kill the process.
FLUSH_TIMEOUT_S: Final = 0.5
STDIN: Final = 0
CHUNK_BYTES: Final = 64 * 1024


async def serve_stdio(
    client: AsyncClient, *, thread: str | None = None, environment: str | None = None
) -> None:
    """Serve until stdin ends or a signal arrives. A named ``thread``'s sandbox is used and kept."""
    sandbox = ProcessBinding(client, thread=thread, environment=environment)
    server = build_mcp(sandbox, await client.catalogue(), environment)
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    end_input = _interruptible_stdin(lambda: loop.call_soon_threadsafe(stopping.set))
    for signal_number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(signal_number, end_input)
    serving = asyncio.create_task(server.run_stdio_async(), name="mcp over stdio")
    waiting = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        # A client that has stopped reading would block the last answers and the cleanup for ever.
        await asyncio.wait({serving}, timeout=FLUSH_TIMEOUT_S)
    finally:
        waiting.cancel()
        await sandbox.end()
    await serving


def _interruptible_stdin(on_end: Callable[[], object]) -> Callable[[], None]:
    """Put a pipe in front of stdin. The returned function ends the input, whatever the client does.

    The MCP library reads in a thread that cannot be interrupted. Without the pipe, a signal would
    take effect only at the client's next message.
    """
    original = os.dup(STDIN)
    read_end, write_end = os.pipe()
    os.dup2(read_end, STDIN)
    os.close(read_end)
    devnull = os.open(os.devnull, os.O_WRONLY)

    def end() -> None:
        # Replaced in place, so that the thread below never writes to a reused file descriptor.
        os.dup2(devnull, write_end)
        on_end()

    def forward() -> None:
        try:
            while chunk := os.read(original, CHUNK_BYTES):
                remaining = memoryview(chunk)
                while remaining:
                    remaining = remaining[os.write(write_end, remaining) :]
        except OSError:
            pass  # the terminal is gone, or the pipe has no reader: the input has ended
        end()

    threading.Thread(target=forward, name="stdin", daemon=True).start()
    return end

"""Serves an app with uvicorn until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import structlog
import uvicorn

from sandlot.api.edge.connection_limits import ConnectionLimits
from sandlot.api.edge.stream_limits import StreamLimits
from sandlot.api.edge.uvicorn_protocols import BoundedWebSocketProtocol, http_protocol
from sandlot.config.settings import ServerSettings, is_loopback
from sandlot.domain.errors import Conflict
from sandlot.wiring.freed_memory import return_freed_memory

log = structlog.get_logger("sandlot.server")

AsyncFunction = Callable[[], Coroutine[Any, Any, Any]]

LISTEN_BACKLOG = 2048
# Seconds for connections to close once the worker has stopped. Those still open then only watch, or
# do not read.
GRACEFUL_SHUTDOWN_S = 2
# The most bytes that uvicorn buffers of one message before the application gets it. Pieces of stdin
# are smaller than this.
MAX_WEBSOCKET_MESSAGE_BYTES = 1024 * 1024


async def serve_app(
    app: Any,
    listener: socket.socket,
    stop: AsyncFunction,
    settings: ServerSettings,
    *,
    until: AsyncFunction | None = None,
) -> None:
    """Serve until a signal arrives. Then wait for ``stop`` and close the connections last.

    Serving also ends when ``until`` returns, because there is no point in going on.
    """
    server = _Server(
        uvicorn.Config(
            app,
            http=http_protocol(connection_limits(settings)),
            ws=BoundedWebSocketProtocol,
            ws_max_size=MAX_WEBSOCKET_MESSAGE_BYTES,
            ws_ping_timeout=None,  # a slow reader answers no pings, but is still there
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,  # X-Forwarded-For is whatever a client says; a proxy counts as one address
            timeout_keep_alive=settings.keep_alive_s,
            timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_S,
        )
    )
    await server.serve_until_stopped(listener, stop, until)


def listen(settings: ServerSettings) -> socket.socket:
    """Bind the port. Call this first, so that a port in use is reported at once."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=LISTEN_BACKLOG)
    except OSError as error:
        advice = (
            "Is another server running there? Choose another port with --port."
            if error.errno == errno.EADDRINUSE
            else "--host must be an address of this machine, and --port one that you are allowed to use."
        )
        raise Conflict(
            f"Cannot listen on {settings.host}:{settings.port}: {error.strerror}. {advice}"
        ) from error


class _Server(uvicorn.Server):
    """uvicorn with our own shutdown: first readiness ends, then connections, then the process.

    A second signal skips the wait for ``stop`` and closes connections at once.
    """

    async def serve_until_stopped(
        self,
        listener: socket.socket,
        stop: AsyncFunction,
        until: AsyncFunction | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        stop_requested, exit_forced = asyncio.Event(), asyncio.Event()

        def on_signal() -> None:
            (exit_forced if stop_requested.is_set() else stop_requested).set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)
        serving = asyncio.create_task(self.serve([listener]), name="http server")
        trimming = asyncio.create_task(return_freed_memory(), name="freed memory")
        try:
            await _wait_for_first(serving, stop_requested.wait(), *([] if until is None else [until()]))
            if stop_requested.is_set():
                log.info("shutting down; press Ctrl-C or send SIGTERM again to force")
                await _wait_for_first(serving, stop(), exit_forced.wait())
        finally:
            self.should_exit = True
            self.force_exit = exit_forced.is_set()
            await serving
            trimming.cancel()
            await asyncio.gather(trimming, return_exceptions=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Calls cancelled by the shutdown are not errors. The client asks again by the exec id.
        logging.getLogger("uvicorn.error").addFilter(_is_not_a_cancellation)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # We handle signals above. uvicorn's handlers would close connections before the worker
        # stops.
        yield


def _is_not_a_cancellation(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


async def _wait_for_first(task: asyncio.Task[None], *waits: Coroutine[Any, Any, Any]) -> None:
    """Return when the task or one of ``waits`` is done. Cancels the other ``waits``."""
    waiting = [asyncio.create_task(wait) for wait in waits]
    await asyncio.wait({task, *waiting}, return_when=asyncio.FIRST_COMPLETED)
    for wait in waiting:
        wait.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


def connection_limits(settings: ServerSettings) -> ConnectionLimits:
    wanted = ConnectionLimits(settings.max_connections, settings.max_connections_per_address)
    bounds = wanted.within_descriptors()
    if bounds != wanted:
        log.warning(
            "fewer connections than configured; raise `ulimit -n`",
            connections=bounds.total,
            configured=wanted.total,
        )
    return bounds


def stream_limits(settings: ServerSettings) -> StreamLimits:
    return StreamLimits(settings.max_streams, settings.max_streams_per_key, settings.max_streams_per_address)


def allowed_hosts(settings: ServerSettings) -> tuple[str, ...] | None:
    """Return the host names to accept, or None for any name.

    A server that listens beyond loopback is protected by its key, and we do not know its names
    unless the settings list them.
    """
    if is_loopback(settings.host) or settings.allowed_hosts:
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        return ("localhost", "127.0.0.1", "[::1]", host, *settings.allowed_hosts)
    return None

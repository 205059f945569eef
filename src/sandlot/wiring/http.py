"""An app behind uvicorn, until SIGTERM or SIGINT."""

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

from sandlot.api.connections import ConnectionBounds
from sandlot.api.protocol import BoundedWebSocketProtocol, http_protocol
from sandlot.api.stream_places import StreamBounds
from sandlot.config.settings import ServerSettings, is_loopback
from sandlot.domain.errors import Conflict

log = structlog.get_logger("sandlot.server")

Wait = Callable[[], Coroutine[Any, Any, Any]]

LISTEN_BACKLOG = 2048
# Seconds for connections once the worker has stopped: what is still open then only looks, or does not read.
GRACEFUL_SHUTDOWN_S = 2
# What uvicorn may hold of one message before the application sees it; stdin comes in pieces smaller than
# this.
MAX_WEBSOCKET_MESSAGE_BYTES = 1024 * 1024


async def serve_app(
    app: Any, listener: socket.socket, stop: Wait, settings: ServerSettings, *, over: Wait | None = None
) -> None:
    """Until it is told to stop: then ``stop`` is given its time, and connections go last. ``over`` ends when
    there is no sense in going on.
    """
    server = _Server(
        uvicorn.Config(
            app,
            http=http_protocol(connection_bounds(settings)),
            ws=BoundedWebSocketProtocol,
            ws_max_size=MAX_WEBSOCKET_MESSAGE_BYTES,
            ws_ping_timeout=None,  # a client that does not read for a while answers no ping, and is not gone
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_keep_alive=settings.keep_alive_s,
            timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_S,
        )
    )
    await server.serve_until_told(listener, stop, over)


def listen(settings: ServerSettings) -> socket.socket:
    """Before anything else is begun: a port that is taken is told at once."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=LISTEN_BACKLOG)
    except OSError as error:
        advice = (
            "is a server running there already? --port takes another one"
            if error.errno == errno.EADDRINUSE
            else "--host must be an address of this machine, and --port one that this user may take"
        )
        raise Conflict(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; {advice}"
        ) from error


class _Server(uvicorn.Server):
    """uvicorn, told to stop by us: readiness goes first, then connections, then the process."""

    async def serve_until_told(
        self,
        listener: socket.socket,
        stop: Wait,
        over: Wait | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        told, hurried = asyncio.Event(), asyncio.Event()

        def tell() -> None:
            (hurried if told.is_set() else told).set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, tell)
        serving = asyncio.create_task(self.serve([listener]), name="http server")
        try:
            await _first(serving, told.wait(), *([] if over is None else [over()]))
            if told.is_set():
                log.info("stopping; once more stops at once")
                await _first(serving, stop(), hurried.wait())
        finally:
            self.should_exit = True
            self.force_exit = hurried.is_set()
            await serving

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Calls that are cut off at the end are no failures of ours; the client asks again by the exec's id.
        logging.getLogger("uvicorn.error").addFilter(_is_not_a_cancellation)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Ours are handled above: uvicorn's own would cut connections before the worker has stopped.
        yield


def _is_not_a_cancellation(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


async def _first(task: asyncio.Task[None], *waits: Coroutine[Any, Any, Any]) -> None:
    """Until one of them is done; what was only waited for is given up."""
    waiting = [asyncio.create_task(wait) for wait in waits]
    await asyncio.wait({task, *waiting}, return_when=asyncio.FIRST_COMPLETED)
    for wait in waiting:
        wait.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


def connection_bounds(settings: ServerSettings) -> ConnectionBounds:
    wanted = ConnectionBounds(settings.max_connections, settings.max_connections_per_address)
    bounds = wanted.within_descriptors()
    if bounds != wanted:
        log.warning(
            "fewer connections than configured: raise `ulimit -n`",
            connections=bounds.total,
            configured=wanted.total,
        )
    return bounds


def stream_bounds(settings: ServerSettings) -> StreamBounds:
    return StreamBounds(settings.max_streams, settings.max_streams_per_key, settings.max_streams_per_address)


def allowed_hosts(settings: ServerSettings) -> tuple[str, ...] | None:
    """None takes any name: a server that listens beyond loopback is guarded by its key, and has names that we
    do not know unless we are told."""
    if is_loopback(settings.host) or settings.allowed_hosts:
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        return ("localhost", "127.0.0.1", "[::1]", host, *settings.allowed_hosts)
    return None

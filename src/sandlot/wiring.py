"""The one place that builds a worker, a server or a local service from settings."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Coroutine, Iterator
from typing import Any

import structlog
import uvicorn

from sandlot.api import create_app
from sandlot.api.protocol import BoundedHttpProtocol
from sandlot.client.async_client import AsyncClient
from sandlot.config.registry import load_registry
from sandlot.config.settings import ServerSettings, is_loopback, server_settings
from sandlot.domain.errors import Conflict
from sandlot.integrations.mcp.on_demand import McpOnDemand, mcp_is_installed
from sandlot.providers.docker import DockerProvider
from sandlot.providers.docker.engine import Engine
from sandlot.worker.options import WorkerOptions
from sandlot.worker.service import WorkerService

log = structlog.get_logger("sandlot.server")

MCP_PATH = "/mcp"
LISTEN_BACKLOG = 2048
# Seconds for connections once the worker has drained: what is still open then only looks, or does not read.
GRACEFUL_SHUTDOWN_S = 2
# What uvicorn may hold of one message before the application sees it; stdin comes in pieces smaller than
# this.
MAX_WEBSOCKET_MESSAGE_BYTES = 1024 * 1024


def build_worker(settings: ServerSettings) -> WorkerService:
    """Not open yet."""
    return WorkerService(**_parts(settings))


def _parts(settings: ServerSettings) -> dict[str, Any]:
    registry = load_registry(settings.registry_dir, defaults=settings.recipe_defaults)
    data_dir = settings.data_dir.absolute()
    engine = Engine(settings.docker_host)
    return {
        "provider": DockerProvider(owner=settings.worker_id, data_dir=data_dir / "docker", engine=engine),
        "database": data_dir / "worker.db",
        "recipes": registry.recipes,
        "catalogue": registry.catalogue,
        "options": worker_options(settings),
    }


def worker_options(settings: ServerSettings) -> WorkerOptions:
    return WorkerOptions(
        worker_id=settings.worker_id,
        create_concurrency=settings.create_concurrency,
        queue_timeout_s=settings.queue_timeout_s,
        max_sessions=settings.max_sessions,
        default_exec_timeout_s=settings.exec_timeout_s,
        max_exec_timeout_s=settings.max_exec_timeout_s,
        max_execs=settings.max_execs,
        allow_never=settings.allow_never,
        orphan_grace_s=settings.orphan_grace_s,
        drain_timeout_s=settings.drain_timeout_s,
    )


# --- in this process ------------------------------------------------------------------------------


class LocalWorker(WorkerService):
    """A worker that lives as long as the program around it; what it made ends with it, if not to be kept."""

    def __init__(self, *, keep_sessions: bool, **parts: Any) -> None:
        super().__init__(**parts)
        self._keep_sessions = keep_sessions
        self._found: set[str] = set()

    async def open(self) -> None:
        await super().open()
        self._found = self.session_ids

    async def close(self) -> None:
        if not self._keep_sessions:
            await self.stop_opening()
            await self.delete_sessions(self.session_ids - self._found)
        await super().close()


async def local_service(*, keep_sessions: bool = False, **given: Any) -> LocalWorker:
    """``given`` are settings (``ServerSettings``), before those of the environment.

    With ``keep_sessions`` the next local service finds them again.
    """
    if not structlog.is_configured():
        # Inside somebody's program: trouble is told, on stderr; the rest is their business.
        _configure_logs("warning", "text")
    settings = server_settings(**given)
    own = {"worker_id": "local", "data_dir": settings.data_dir / "local"}
    settings = settings.model_copy(
        update={name: value for name, value in own.items() if name not in settings.model_fields_set}
    )
    worker = LocalWorker(keep_sessions=keep_sessions, **_parts(settings))
    try:
        await worker.open()
    except BaseException:
        await worker.close()
        raise
    return worker


# --- as a server ----------------------------------------------------------------------------------


async def serve(settings: ServerSettings) -> None:
    """Until SIGTERM or SIGINT: then no new sessions, what runs is given its time, and sandboxes stay."""
    _configure_logs(settings.log_level, settings.log_format)
    listener = _listen(settings)
    worker = build_worker(settings)
    mcp = await _mcp_endpoint(worker)
    app = create_app(
        worker,
        api_key=settings.key,
        allowed_hosts=allowed_hosts(settings),
        max_upload_bytes=settings.max_upload_bytes,
        mounted={} if mcp is None else {MCP_PATH: mcp},
    )
    server = _Server(
        uvicorn.Config(
            app,
            http=BoundedHttpProtocol,
            ws="websockets-sansio",
            ws_max_size=MAX_WEBSOCKET_MESSAGE_BYTES,
            ws_ping_timeout=None,  # a client that does not read for a while answers no ping, and is not gone
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_S,
        )
    )
    try:
        await worker.open()
        for warning in await worker.warnings():
            log.warning(warning)
        log.info(
            "serving",
            url=f"http://{settings.host}:{settings.port}",
            environments=", ".join(e.name for e in (await worker.catalogue()).environments),
            key="asked for" if settings.key else "not asked for (loopback only)",
            mcp="not installed" if mcp is None else MCP_PATH,
        )
        await server.serve_until_told(worker, listener)
    finally:
        if mcp is not None:
            await mcp.aclose()
        listener.close()
        await worker.close()


async def _mcp_endpoint(worker: WorkerService) -> McpOnDemand | None:
    """None where the extra is not installed: everything else is served as before."""
    return McpOnDemand(AsyncClient(service=worker), await worker.catalogue()) if mcp_is_installed() else None


def _listen(settings: ServerSettings) -> socket.socket:
    """Before anything else is begun: a port that is taken is told at once."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=LISTEN_BACKLOG)
    except OSError as error:
        raise Conflict(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; "
            "is a server running there already? --port takes another one"
        ) from error


class _Server(uvicorn.Server):
    """uvicorn, told to stop by us: readiness goes first, then connections, then the process."""

    async def serve_until_told(self, worker: WorkerService, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        told, hurried = asyncio.Event(), asyncio.Event()

        def tell() -> None:
            (hurried if told.is_set() else told).set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, tell)
        serving = asyncio.create_task(self.serve([listener]), name="http server")
        try:
            await _first(serving, told.wait())
            if not serving.done():
                log.info("stopping; once more stops at once", calls=(await worker.health()).calls_under_way)
                await _first(serving, worker.drain(), hurried.wait())
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
        # Ours are handled above: uvicorn's own would cut connections before the worker has drained.
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


def allowed_hosts(settings: ServerSettings) -> tuple[str, ...] | None:
    """None takes any name: a server that listens beyond loopback is guarded by its key, and has names that we
    do not know unless we are told."""
    if is_loopback(settings.host) or settings.allowed_hosts:
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        return ("localhost", "127.0.0.1", "[::1]", host, *settings.allowed_hosts)
    return None


class _AsEvents(logging.Handler):
    """What a library logs in its own way, as one event a line among ours."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        log.warning(record.name, message=record.getMessage(), error=None if error is None else repr(error))


def _configure_logs(level: str, form: str) -> None:
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    library = logging.getLogger("mcp")
    library.handlers, library.propagate = [_AsEvents(logging.WARNING)], False

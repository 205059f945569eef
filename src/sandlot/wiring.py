"""The one place that builds a worker, a server or a local service from settings."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Iterator
from typing import Any

import structlog
import uvicorn

from sandlot.api import create_app
from sandlot.api.protocol import BoundedHttpProtocol
from sandlot.config.registry import load_registry
from sandlot.config.settings import ServerSettings, is_loopback, server_settings
from sandlot.domain.service import Opened
from sandlot.domain.session import CreateSession
from sandlot.providers.docker import DockerProvider
from sandlot.providers.docker.engine import Engine
from sandlot.worker.options import WorkerOptions
from sandlot.worker.service import WorkerService

log = structlog.get_logger("sandlot.server")

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
        self._made: set[str] = set()

    async def create_session(self, request: CreateSession) -> Opened:
        opened = await super().create_session(request)
        if opened.created:
            self._made.add(opened.session.id)
        return opened

    async def close(self) -> None:
        if not self._keep_sessions:
            await self.delete_sessions(self._made)
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
    worker = build_worker(settings)
    app = create_app(
        worker,
        api_key=settings.key,
        allowed_hosts=allowed_hosts(settings),
        max_upload_bytes=settings.max_upload_bytes,
    )
    server = _Server(
        uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            http=BoundedHttpProtocol,
            ws="websockets-sansio",
            ws_max_size=MAX_WEBSOCKET_MESSAGE_BYTES,
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=max(1, round(settings.drain_timeout_s)),
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
        )
        await server.serve_until_told(worker)
    finally:
        await worker.close()


class _Server(uvicorn.Server):
    """uvicorn, told to stop by us: readiness goes first, then connections, then the process."""

    async def serve_until_told(self, worker: WorkerService) -> None:
        loop = asyncio.get_running_loop()
        told = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, told.set)
        serving = asyncio.create_task(self.serve(), name="http server")
        stopping = asyncio.create_task(told.wait(), name="wait for a signal")
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                log.info("stopping", running=(await worker.health()).calls_under_way)
                await worker.drain()
        finally:
            stopping.cancel()
            self.should_exit = True
            await serving

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Ours are handled above: uvicorn's own would cut connections before the worker has drained.
        yield


def allowed_hosts(settings: ServerSettings) -> tuple[str, ...] | None:
    """None takes any name: a server that listens beyond loopback is guarded by its key, and has names that we
    do not know unless we are told."""
    if is_loopback(settings.host) or settings.allowed_hosts:
        return ("localhost", "127.0.0.1", "[::1]", *settings.allowed_hosts)
    return None


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

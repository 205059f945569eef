"""``sandlot serve``: one worker and its API, without Redis."""

from __future__ import annotations

import structlog

from sandlot.api import create_app
from sandlot.client.async_client import AsyncClient
from sandlot.config.settings import ServerSettings
from sandlot.domain.service import Catalogue, SandboxService
from sandlot.integrations.mcp.on_demand import McpOnDemand, mcp_is_installed
from sandlot.wiring.http import allowed_hosts, listen, serve_app, stream_bounds
from sandlot.wiring.logs import configure_server_logs
from sandlot.wiring.watchdog import watched
from sandlot.wiring.worker import build_worker, named_by_folder, starting

log = structlog.get_logger("sandlot.server")

MCP_PATH = "/mcp"


async def serve(settings: ServerSettings) -> None:
    """Until SIGTERM or SIGINT: then no new sessions, what runs is given its time, and sandboxes stay."""
    configure_server_logs(settings.log_level, settings.log_format)
    listener = listen(settings)
    worker = await build_worker(named_by_folder(settings))
    mcp = mcp_endpoint(worker, await worker.catalogue())
    app = create_app(
        worker,
        api_key=settings.key,
        allowed_hosts=allowed_hosts(settings),
        max_upload_bytes=settings.max_upload_bytes,
        streams=stream_bounds(settings),
        max_held_bytes=settings.max_held_bytes,
        mounted={} if mcp is None else {MCP_PATH: mcp},
    )
    try:
        with starting(settings):
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
        async with watched():
            await serve_app(app, listener, worker.stop, settings)
    finally:
        if mcp is not None:
            await mcp.aclose()
        listener.close()
        await worker.close()


def mcp_endpoint(service: SandboxService, catalogue: Catalogue) -> McpOnDemand | None:
    """None where the extra is not installed: everything else is served as before."""
    return McpOnDemand(AsyncClient(service=service), catalogue) if mcp_is_installed() else None

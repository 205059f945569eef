"""``sandlot serve``: one worker and its API, without Redis."""

from __future__ import annotations

import structlog

from sandlot.api import create_app
from sandlot.api.console.pages import PATH as CONSOLE_PATH
from sandlot.client.async_client import AsyncClient
from sandlot.config.settings import ServerSettings
from sandlot.domain.callers.principal import OWNER
from sandlot.domain.service import Catalogue, SandboxHost
from sandlot.integrations.mcp.lazy_endpoint import LazyMcpEndpoint, mcp_is_installed
from sandlot.wiring.announcing import announced
from sandlot.wiring.callers import Callers
from sandlot.wiring.http import allowed_hosts, listen, serve_app, stream_limits
from sandlot.wiring.logs import configure_server_logs
from sandlot.wiring.previews import e2b_options, preview_options, secret_in
from sandlot.wiring.reloading import worker_reloader
from sandlot.wiring.telemetry.traces import configure_traces
from sandlot.wiring.templates.builds import built_environments, template_builds
from sandlot.wiring.watchdog import watchdog
from sandlot.wiring.worker import build_worker, named_by_folder, starting
from sandlot.worker.store.keys import SqliteKeys
from sandlot.worker.webhooks.options import WebhookOptions

log = structlog.get_logger("sandlot.server")

MCP_PATH = "/mcp"


async def serve(settings: ServerSettings) -> None:
    """Serve until SIGTERM or SIGINT.

    Then take no new sessions and let running commands finish in time. The sandboxes stay.
    """
    configure_server_logs(settings.log_level, settings.log_format)
    configure_traces(settings, "server")
    listener = listen(settings)
    settings = named_by_folder(settings)
    log.info("starting: connecting to Docker", data_dir=str(settings.data_dir.absolute()))
    keys = SqliteKeys(settings.data_dir.absolute())
    callers = Callers(settings, keys)
    worker = await build_worker(
        settings,
        policy_of=callers.policy_of,
        allowances=callers.allowances,
        webhooks=WebhookOptions(settings.webhook_networks),
    )
    catalogue = await worker.acting_for(OWNER).catalogue()
    mcp = mcp_endpoint(worker, catalogue)
    built = await built_environments(settings)
    reloader = worker_reloader(settings, worker, built)
    builds = template_builds(settings, built, reloader)
    secret = secret_in(settings.data_dir.absolute())
    app = create_app(
        worker,
        api_key=settings.key,
        keys=callers.ring,
        oidc=callers.oidc,
        allowed_hosts=allowed_hosts(settings),
        max_upload_bytes=settings.max_upload_bytes,
        streams=stream_limits(settings),
        max_held_bytes=settings.max_held_bytes,
        recorder=worker.recorder,
        webhooks=worker.webhooks,
        policies=worker.policy_names,
        previews=preview_options(settings, secret),
        e2b=e2b_options(settings, secret, builds),
        console=settings.console,
        mounted={} if mcp is None else {MCP_PATH: mcp},
        reload=reloader,
        figures=worker.figures,
    )
    try:
        with starting(settings):
            await worker.open()
            if builds is not None:
                builds.open()
            if callers.ring is not None:
                await keys.open()
            await callers.open()
        for warning in await worker.warnings():
            log.warning(warning)
        log.info(
            "serving",
            url=f"http://{settings.host}:{settings.port}",
            environments=", ".join(known.name for known in catalogue.environments),
            key="required" if settings.key else "not required (loopback only)",
            mcp="not installed" if mcp is None else MCP_PATH,
            console=CONSOLE_PATH if settings.console else "off",
        )
        with announced(listener, settings) as withdraw:

            async def stop() -> None:
                withdraw()  # first, so that no new command comes here
                await worker.stop()

            with reloader.on_hangup():
                async with watchdog():
                    await serve_app(app, listener, stop, settings)
        log.info("removing the warm sandboxes; those of sessions stay")
    finally:
        if mcp is not None:
            await mcp.aclose()
        listener.close()
        if builds is not None:
            await builds.close()
        await worker.close()
        await callers.close()
        await keys.close()


def mcp_endpoint(host: SandboxHost, catalogue: Catalogue) -> LazyMcpEndpoint | None:
    """Return the MCP endpoint, or None if the ``mcp`` extra is not installed."""
    if not mcp_is_installed():
        return None
    return LazyMcpEndpoint(lambda caller: AsyncClient(service=host.acting_for(caller)), catalogue)

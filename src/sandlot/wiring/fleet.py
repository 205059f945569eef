"""Builds and serves the members of a fleet: workers that join a directory, and coordinators."""

from __future__ import annotations

import socket

import structlog

from sandlot import __version__
from sandlot.api import create_app
from sandlot.api.edge.key_ring import KeyRing
from sandlot.api.fleet.worker import assigned_create_route, worker_routes
from sandlot.client.http.transport.connection import Connection
from sandlot.config.fleet_settings import (
    CoordinatorFleetSettings,
    FleetSettings,
    MemberSettings,
    WorkerFleetSettings,
)
from sandlot.config.registry.loading import Registry, load_registry
from sandlot.config.settings import ServerSettings
from sandlot.domain.callers.slots import ExecSlots
from sandlot.domain.environment import Reload, ServerReload, environment_changes
from sandlot.domain.errors import Conflict, InvalidRequest, Unauthorized, Unavailable
from sandlot.domain.history.positions import worker_tag
from sandlot.domain.history.recorder import Recorder
from sandlot.domain.metrics.figures import Figures
from sandlot.domain.metrics.table import COORDINATOR_METRICS, MEMBER_METRICS
from sandlot.fleet.access import AccessTokens, TokenGate, token_times
from sandlot.fleet.coordinator.host import CoordinatorHost
from sandlot.fleet.coordinator.options import CoordinatorOptions
from sandlot.fleet.coordinator.webhooks import FleetWebhooks
from sandlot.fleet.coordinator.worker_links import WorkerLinks
from sandlot.fleet.directory.contract import Timings, WorkerCard, WorkerRef
from sandlot.fleet.directory.redis_directory import RedisDirectory
from sandlot.fleet.keys.redis_keys import RedisKeys
from sandlot.fleet.membership.control_token import ControlToken, read_control_token
from sandlot.fleet.membership.membership import Membership
from sandlot.fleet.rates.redis_rates import RedisRates
from sandlot.fleet.signing_keys import PublicKeys, SigningKey
from sandlot.fleet.slots.redis_slots import RedisSlots
from sandlot.fleet.webhooks.redis_webhooks import RedisWebhooks
from sandlot.wiring.announcing import reachable_here
from sandlot.wiring.callers import Callers
from sandlot.wiring.http import allowed_hosts, listen, serve_app, stream_limits
from sandlot.wiring.logs import configure_server_logs
from sandlot.wiring.previews import PURPOSE, TOKENS_PURPOSE, e2b_options, preview_options
from sandlot.wiring.reloading import Reloader, worker_reloader
from sandlot.wiring.single import MCP_PATH, mcp_endpoint
from sandlot.wiring.telemetry.traces import configure_traces
from sandlot.wiring.watchdog import watchdog
from sandlot.wiring.worker import build_worker, history_options, starting
from sandlot.worker.history.export import Exporter, exporter_for
from sandlot.worker.host import WorkerHost
from sandlot.worker.webhooks.followed import FollowedWebhooks
from sandlot.worker.webhooks.options import WebhookOptions

log = structlog.get_logger("sandlot.server")


def open_directory(fleet: FleetSettings, figures: Figures | None = None) -> RedisDirectory:
    return RedisDirectory.open(
        fleet.redis,
        sentinels=fleet.sentinels,
        sentinel_name=fleet.sentinel_name,
        sentinel_password=fleet.sentinels_password,
        cell=fleet.cell,
        timings=Timings(lease_s=fleet.lease_s, lost_after_s=fleet.lost_after_s),
        figures=figures,
    )


def access_tokens(fleet: CoordinatorFleetSettings) -> AccessTokens:
    lifetime_s = token_times(fleet.lost_after_s).lifetime_s
    return AccessTokens(SigningKey.parse(fleet.private_key), lifetime_s=lifetime_s)


def advertised_url(settings: ServerSettings, fleet: FleetSettings) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = fleet.advertise_url or f"http://{host}:{settings.port}"
    if Connection(url).host in ("0.0.0.0", "::"):
        raise InvalidRequest(
            f"Other machines cannot reach this worker at {url}. Set SANDLOT_ADVERTISE_URL to an "
            "address that they can reach."
        )
    return url


async def serve_worker(settings: MemberSettings, fleet: WorkerFleetSettings) -> None:
    """Serve a worker of a fleet, like ``serve``.

    The worker accepts coordinators, and clients that have a token from a coordinator.
    """
    configure_server_logs(settings.log_level, settings.log_format)
    configure_traces(settings, "worker")
    keys = PublicKeys.parse(fleet.public_keys)
    control = ControlToken(settings.data_dir.absolute())
    url = advertised_url(settings, fleet)
    listener = listen(settings)
    figures = Figures(MEMBER_METRICS)
    directory = open_directory(fleet, figures)
    membership = Membership(
        directory,
        WorkerCard(settings.worker_id, url, __version__),
        settings.data_dir.absolute(),
        keys=keys.fingerprints,
    )
    ring = KeyRing(RedisKeys(directory.calls), shared_limits=settings.shared_limits, read_only=True)
    slots = RedisSlots(directory.calls, settings.worker_id)
    worker = await build_worker(
        settings,
        policy_of=ring.policy_of,
        figures=figures,
        registrar=membership,
        slots=ExecSlots(ring.allowances, slots),
        webhooks=WebhookOptions(settings.webhook_networks, shared=True),
    )
    webhooks = followed_webhooks(worker, directory)
    reloader = worker_reloader(settings, worker)
    app = create_app(
        worker,
        api_key=settings.key,
        tokens=TokenGate(
            keys,
            worker_id=settings.worker_id,
            generation_of=worker.generation_of,
            key_has_ended=ring.has_ended,
            control=control.secret,
            leeway_s=token_times(fleet.lost_after_s).leeway_s,
        ),
        keys=ring,
        worker_id=settings.worker_id,
        gate=membership.confirm,
        routers=[worker_routes(worker)],
        raw_routes=[assigned_create_route(worker)],
        recorder=worker.recorder,
        webhooks=webhooks,
        allowed_hosts=None,  # every request needs a token, so the host name does not matter
        max_upload_bytes=settings.max_upload_bytes,
        streams=stream_limits(settings),
        max_held_bytes=settings.max_held_bytes,
        rates=RedisRates(directory.calls),
        reload=reloader,
        figures=figures,
    )
    try:
        with starting(settings):
            membership.lock()
            control.save()
            await worker.open()
        slots.open()
        if webhooks is not None:
            webhooks.open()
        for warning in await worker.warnings():
            log.warning(warning)
        await membership.start(worker)
        await ring.open()
        log.info("serving as a fleet worker", worker=settings.worker_id, url=url, redis=fleet.redis_for_logs)
        with reloader.on_hangup():
            async with watchdog(fleet.watchdog_s):
                await serve_app(app, listener, worker.stop, settings, until=membership.until_fenced)
        if membership.fenced:
            raise Conflict(f"{membership.problem} Give each worker its own --id.")
    finally:
        listener.close()
        control.remove()
        await ring.close()
        if webhooks is not None:
            await webhooks.close()
        await worker.close()
        await slots.close()
        await membership.close()
        await directory.close()


def followed_webhooks(worker: WorkerHost, directory: RedisDirectory) -> FollowedWebhooks | None:
    """None if the worker keeps no history."""
    webhooks = worker.webhooks
    return None if webhooks is None else FollowedWebhooks(webhooks, RedisWebhooks(directory.calls))


async def serve_coordinator(settings: ServerSettings, fleet: CoordinatorFleetSettings) -> None:
    configure_server_logs(settings.log_level, settings.log_format)
    configure_traces(settings, "coordinator")
    registry = load_registry(settings.registry_dir, defaults=settings.recipe_defaults)
    tokens = access_tokens(fleet)
    signing_key = SigningKey.parse(fleet.private_key)
    listener = listen(settings)
    figures = Figures(COORDINATOR_METRICS)
    directory = open_directory(fleet, figures)
    callers = Callers(settings, RedisKeys(directory.calls))
    coordinator_id = f"coordinator:{socket.gethostname()}:{settings.port}"
    coordinator = CoordinatorHost(
        directory,
        tokens,
        registry.catalogue,
        CoordinatorOptions(
            coordinator_id=coordinator_id,
            direct=fleet.direct,
            expected=fleet.expected_workers,
            max_exec_timeout_s=settings.max_exec_timeout_s,
            exec_grace_s=settings.exec_grace_s,
        ),
        callers.allowances,
        figures,
    )
    webhooks = FleetWebhooks(
        RedisWebhooks(directory.calls), coordinator.asked_workers, settings.webhook_networks
    )
    mcp = mcp_endpoint(coordinator, registry.catalogue)
    exporter = coordinator_exporter(settings, coordinator_id)
    policies = dict(registry.policies)

    async def apply(new: Registry) -> Reload:
        nonlocal registry
        workers = await coordinator.reload(new.catalogue)
        changes = environment_changes(registry.recipes, new.recipes)
        registry = new
        policies.clear()
        policies.update(new.policies)
        return Reload((ServerReload(coordinator_id, changes), *workers))

    reloader = Reloader(settings, apply)
    app = create_app(
        coordinator,
        api_key=settings.key,
        keys=callers.ring,
        oidc=callers.oidc,
        access=coordinator.access,
        fleet=coordinator.operations,
        allowed_hosts=allowed_hosts(settings),
        max_upload_bytes=settings.max_upload_bytes,
        streams=stream_limits(settings),
        max_held_bytes=settings.max_held_bytes,
        mounted={} if mcp is None else {MCP_PATH: mcp},
        rates=RedisRates(directory.calls),
        recorder=None if exporter is None else Recorder(exporter.write_one, worker_tag(coordinator_id)),
        policies=policies.keys(),
        webhooks=webhooks if settings.history else None,
        previews=preview_options(settings, signing_key.derived(PURPOSE)),
        e2b=e2b_options(settings, signing_key.derived(TOKENS_PURPOSE)),
        console=settings.console,
        reload=reloader,
        figures=figures,
    )
    try:
        log.info(
            "coordinating",
            url=f"http://{settings.host}:{settings.port}",
            redis=fleet.redis_for_logs,
            key="required" if settings.key else "not required (loopback only)",
            direct="clients connect to workers directly"
            if fleet.direct
            else ("all traffic goes through the coordinator"),
        )
        await coordinator.health()  # logs a warning if the directory is unreachable
        await callers.open()
        coordinator.start_sweeping()
        with reloader.on_hangup():
            async with watchdog(fleet.watchdog_s):
                await serve_app(app, listener, coordinator.stop, settings)
    finally:
        if mcp is not None:
            await mcp.aclose()
        listener.close()
        await callers.close()
        await coordinator.close()
        await directory.close()
        if exporter is not None:
            exporter.close()


def coordinator_exporter(settings: ServerSettings, coordinator_id: str) -> Exporter | None:
    """Where a coordinator's own events go: it keeps no history, because it keeps nothing."""
    if not settings.history or settings.history_export is None:
        return None
    return exporter_for(history_options(settings), settings.history_export, coordinator_id)


async def set_draining(settings: MemberSettings, *, draining: bool) -> None:
    """Start or stop draining the worker of this machine, found by its own settings."""
    token = read_control_token(settings.data_dir.absolute())
    links = WorkerLinks(lambda _worker, _caller: token)
    worker = WorkerRef(settings.worker_id, reachable_here(settings.host, settings.port), epoch=0)
    try:
        await (await links.to(worker)).set_draining(draining)
    except Unauthorized as error:
        raise Conflict(
            f"The worker at {worker.url} rejected this command: it uses another data folder than "
            f"{settings.data_dir}. Name its folder with --data-dir before the subcommand, or with "
            "SANDLOT_DATA_DIR."
        ) from error
    except Unavailable as error:
        raise Unavailable(
            f"No worker answers at {worker.url}. If you started it with options, repeat them before the "
            "subcommand: sandlot worker --host HOST --port PORT drain"
        ) from error
    finally:
        await links.close()

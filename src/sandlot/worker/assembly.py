"""Builds the parts of a worker and connects them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sandlot.domain.callers.limits import AllowancesOf
from sandlot.domain.callers.slots import ExecSlots
from sandlot.domain.environment import Environment, Recipe
from sandlot.domain.metrics.figures import Figures
from sandlot.domain.policy.tenant_policies import TenantPolicies
from sandlot.providers.base import Provider, Sandbox
from sandlot.worker.artifacts.artifacts import Artifacts
from sandlot.worker.capacity import Capacity
from sandlot.worker.command_policies import CommandPolicies
from sandlot.worker.contexts.bridges import Bridges
from sandlot.worker.contexts.contexts import Contexts
from sandlot.worker.disk import Disk
from sandlot.worker.history.history import History
from sandlot.worker.network.broker.brokers import Brokers
from sandlot.worker.network.networks import Networks
from sandlot.worker.options import WorkerOptions
from sandlot.worker.pool.environments import Environments
from sandlot.worker.pool.one_off import OneOffSandboxes
from sandlot.worker.pool.readiness import EnvironmentReadiness
from sandlot.worker.pool.warm_pool import WarmPool
from sandlot.worker.quotas import Quotas
from sandlot.worker.recordings.recordings import Recordings
from sandlot.worker.registrar import Registrar
from sandlot.worker.sessions.creates import Creates
from sandlot.worker.sessions.fleet_moves import FleetMoves
from sandlot.worker.sessions.lifecycle import SessionLifecycle
from sandlot.worker.sessions.opening import Opening
from sandlot.worker.sessions.provisioning import Provisioning
from sandlot.worker.sessions.starting import Starting
from sandlot.worker.sessions.usage import Usage
from sandlot.worker.store.database import Store
from sandlot.worker.store.sandboxes import Sandboxes
from sandlot.worker.store.transitions import Transitions
from sandlot.worker.upkeep.figures import watch_parts
from sandlot.worker.upkeep.reaper import Reaper
from sandlot.worker.upkeep.removals import Removals
from sandlot.worker.volumes.volumes import Volumes
from sandlot.worker.webhooks.options import WebhookOptions
from sandlot.worker.webhooks.webhooks import WorkerWebhooks
from sandlot.worker.workspaces.automatic import AutomaticSnapshots
from sandlot.worker.workspaces.exports import Exports
from sandlot.worker.workspaces.imports import Imports
from sandlot.worker.workspaces.records import SnapshotRecords
from sandlot.worker.workspaces.seeds import Seeds
from sandlot.worker.workspaces.setup_scripts import SetupScripts
from sandlot.worker.workspaces.snapshots import Snapshots
from sandlot.worker.workspaces.workspaces import OwnedWorkspaces, Workspaces

if TYPE_CHECKING:  # it needs libraries that other workers do not
    from sandlot.worker.workspaces.objects.storage import ObjectStorage


@dataclass(frozen=True, slots=True)
class WorkerParts:
    store: Store
    history: History
    sandboxes: Sandboxes
    environments: Environments
    pools: Mapping[str, WarmPool]
    one_off: OneOffSandboxes
    readiness: EnvironmentReadiness
    sessions: SessionLifecycle
    opening: Opening
    usage: Usage
    moves: FleetMoves
    creates: Creates
    disk: Disk
    capacity: Capacity
    quotas: Quotas
    reaper: Reaper
    networks: Networks
    snapshots: Snapshots
    exports: Exports | None
    imports: Imports | None
    automatic: AutomaticSnapshots | None
    seeds: Seeds
    artifacts: Artifacts
    objects: ObjectStorage | None
    volumes: Volumes
    bridges: Bridges
    contexts: Contexts
    policies: CommandPolicies
    webhooks: WorkerWebhooks | None


def assemble(
    provider: Provider,
    database: Path,
    recipes: Mapping[str, Recipe],
    options: WorkerOptions,
    registrar: Registrar,
    allowances: AllowancesOf,
    slots: ExecSlots,
    webhooks: WebhookOptions | None,
    tenant_policies: TenantPolicies,
    brokers: Brokers | None = None,
    objects: ObjectStorage | None = None,
    figures: Figures | None = None,
) -> WorkerParts:
    """``webhooks``: None for a worker that sends none. ``brokers``: None for one without secrets.
    ``objects``: None for one that saves nothing elsewhere.
    """
    figures = figures or Figures()
    store = Store(database, options.worker_id)
    owned = OwnedWorkspaces()
    workspaces = Workspaces(provider.workspaces, SnapshotRecords(database.parent), options.workspaces, owned)
    sandboxes = Sandboxes(
        provider,
        store,
        concurrency=options.create_concurrency,
        orphan_grace_s=options.orphan_grace_s,
        keep=owned,
    )
    # Looked up when a script runs or the sweep comes: both are made below, and need what this makes.
    scripts = SetupScripts(sandboxes, lambda: networks, options)
    seeds = Seeds(provider, sandboxes, workspaces, scripts, lambda: environments.recipes, options.worker_id)
    bridges = Bridges()

    def new_pool(recipe: Recipe) -> WarmPool:
        return WarmPool(
            recipe,
            options,
            make=partial(_make_warm, seeds, bridges, sandboxes, recipe),
            prepare=seeds.prepare,
            discard=sandboxes.discard,
            slots=sandboxes.slots,
            figures=figures,
        )

    environments = Environments(recipes, new_pool)
    pools = environments.pools
    readiness = EnvironmentReadiness(provider, pools, options.worker_id)
    one_off = OneOffSandboxes(options, make=seeds.make, prepare=seeds.prepare, slots=sandboxes.slots)
    removals, transitions = Removals(sandboxes, workspaces), Transitions(store)
    recordings = Recordings(database.parent, options.recordings)
    history = History(database.parent, options.worker_id, options.history, recordings, slots, figures)
    sessions = SessionLifecycle(
        store=store,
        removals=removals,
        transitions=transitions,
        options=options,
        registrar=registrar,
        history=history,
    )
    owned.has = sessions.table.has_workspace
    disk = Disk(store, database.parent, options.engine_folder, options.storage_folder, options.min_free_bytes)
    capacity = Capacity(options, sessions.table, disk, environments.recipes)
    networks = Networks(
        options.network, environments.recipes, history.recorder, store, sandboxes, transitions, brokers
    )
    quotas = Quotas(sessions.table, allowances)
    volumes = Volumes(
        provider.workspaces, database.parent, options.volumes, sessions.table, registrar, options.worker_id
    )
    opening = Opening(
        sessions,
        provisioning=Provisioning(
            store,
            sandboxes,
            pools,
            one_off,
            options,
            removals,
            transitions,
            networks.variables,
            workspaces,
            volumes,
        ),
        transitions=transitions,
        starting=Starting(sessions, sandboxes, environments.recipes, networks, volumes),
        recipes=environments.recipes,
        capacity=capacity,
        quotas=quotas,
        registrar=registrar,
        networks=networks,
        workspaces=workspaces,
        volumes=volumes,
        figures=figures,
    )
    watch_parts(
        figures,
        disk=disk,
        capacity=capacity,
        history=history,
        networks=networks,
        sessions=sessions.table,
    )
    snapshots = Snapshots(workspaces, opening, options.worker_id)
    automatic = None
    if objects is not None:
        workspaces.export_to(objects, options.worker_id)
    if workspaces.exports is not None:
        automatic = AutomaticSnapshots(snapshots, sessions, options.workspaces.snapshot_every_s)
    artifacts = Artifacts(
        database.parent,
        options.artifacts,
        sessions,
        worker_id=options.worker_id,
        min_free_bytes=options.min_free_bytes,
    )
    if objects is not None:
        artifacts.copy_to(objects)
    return WorkerParts(
        store=store,
        history=history,
        sandboxes=sandboxes,
        environments=environments,
        pools=pools,
        one_off=one_off,
        readiness=readiness,
        sessions=sessions,
        opening=opening,
        usage=Usage(provider),
        moves=FleetMoves(sessions.table, store, removals, transitions, options, history),
        creates=Creates(opening, registrar, options.queue_timeout_s),
        disk=disk,
        capacity=capacity,
        quotas=quotas,
        reaper=Reaper(
            sessions,
            sandboxes,
            pools,
            readiness,
            store,
            options,
            disk,
            snapshots,
            seeds,
            artifacts,
            volumes,
            automatic,
        ),
        networks=networks,
        snapshots=snapshots,
        exports=workspaces.exports,
        imports=workspaces.imports,
        automatic=automatic,
        seeds=seeds,
        artifacts=artifacts,
        objects=objects,
        volumes=volumes,
        bridges=bridges,
        contexts=Contexts(bridges, environments.recipes),
        policies=CommandPolicies(recipes, tenant_policies),
        webhooks=None
        if webhooks is None or not options.history.enabled
        else WorkerWebhooks(history, database.parent, webhooks),
    )


async def _make_warm(
    seeds: Seeds, bridges: Bridges, sandboxes: Sandboxes, recipe: Recipe, environment: Environment
) -> Sandbox:
    """Make a sandbox for the pool, in which the recipe's kernels run already."""
    sandbox = await seeds.make(environment)
    try:
        await bridges.warm(sandbox, recipe.contexts)
    except BaseException:
        await sandboxes.discard(sandbox)
        raise
    return sandbox

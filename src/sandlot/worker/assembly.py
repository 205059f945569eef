"""What a worker consists of, put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sandlot.domain.environment import Recipe
from sandlot.providers.base import Provider
from sandlot.worker.capacity import Capacity
from sandlot.worker.creates import Creates
from sandlot.worker.disk import Disk
from sandlot.worker.equipping import Equipping
from sandlot.worker.opening import Opening
from sandlot.worker.options import WorkerOptions
from sandlot.worker.orders import Orders
from sandlot.worker.pool import Pool
from sandlot.worker.reaper import Reaper
from sandlot.worker.registrar import Registrar
from sandlot.worker.removals import Removals
from sandlot.worker.sandboxes import Sandboxes
from sandlot.worker.sessions import Sessions
from sandlot.worker.store import Store
from sandlot.worker.transitions import Transitions


@dataclass(frozen=True, slots=True)
class Parts:
    store: Store
    sandboxes: Sandboxes
    pools: Mapping[str, Pool]
    orders: Orders
    sessions: Sessions
    opening: Opening
    creates: Creates
    disk: Disk
    capacity: Capacity
    reaper: Reaper


def assemble(
    provider: Provider,
    database: Path,
    recipes: Mapping[str, Recipe],
    options: WorkerOptions,
    registrar: Registrar,
    *,
    tenant: str,
) -> Parts:
    store = Store(database, options.worker_id)
    sandboxes = Sandboxes(
        provider, store, concurrency=options.create_concurrency, orphan_grace_s=options.orphan_grace_s
    )
    pools = {
        name: Pool(recipe, options, make=sandboxes.make, discard=sandboxes.discard, slots=sandboxes.slots)
        for name, recipe in recipes.items()
    }
    orders = Orders(options, make=sandboxes.make, slots=sandboxes.slots)
    removals, transitions = Removals(sandboxes), Transitions(store)
    sessions = Sessions(
        store=store, removals=removals, transitions=transitions, options=options, registrar=registrar
    )
    disk = Disk(store, database.parent, options.engine_folder, options.min_free_bytes)
    capacity = Capacity(options, sessions.table, disk)
    opening = Opening(
        sessions,
        equipping=Equipping(store, sandboxes, pools, orders, options, removals, transitions),
        transitions=transitions,
        sandboxes=sandboxes,
        recipes=recipes,
        capacity=capacity,
        registrar=registrar,
    )
    return Parts(
        store=store,
        sandboxes=sandboxes,
        pools=pools,
        orders=orders,
        sessions=sessions,
        opening=opening,
        creates=Creates(opening, registrar, tenant, options.queue_timeout_s),
        disk=disk,
        capacity=capacity,
        reaper=Reaper(sessions, sandboxes, pools, store, options, disk),
    )

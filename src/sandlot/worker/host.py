"""``WorkerHost``: a worker's life, its place in a fleet, and a ``WorkerService`` for each caller."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from sandlot.domain.artifacts.artifact import ArtifactPage
from sandlot.domain.callers.limits import AllowancesOf, Use, no_allowances
from sandlot.domain.callers.principal import Principal
from sandlot.domain.callers.scoped_service import scoped
from sandlot.domain.callers.slots import ExecSlots, SlotsInMemory
from sandlot.domain.capacity.machine import Condition
from sandlot.domain.environment import EnvironmentChanges, Recipe
from sandlot.domain.history.recorder import Recorder
from sandlot.domain.metrics.figures import Figures
from sandlot.domain.policy.policy import CommandPolicy
from sandlot.domain.policy.tenant_policies import TenantPolicies
from sandlot.domain.service import Catalogue, Opened, SandboxService, ServiceHealth
from sandlot.domain.session import Assignment, CreateSession, EndReason, Session
from sandlot.domain.session_states import no_session_error
from sandlot.domain.volumes.volume import Volume
from sandlot.providers.base import Provider
from sandlot.worker.assembly import assemble
from sandlot.worker.network.broker.brokers import Brokers
from sandlot.worker.options import WorkerOptions
from sandlot.worker.registrar import Registrar, Unregistered
from sandlot.worker.service import WorkerService
from sandlot.worker.status import WorkerStatus
from sandlot.worker.upkeep.startup import recover
from sandlot.worker.webhooks.options import WebhookOptions
from sandlot.worker.webhooks.webhooks import WorkerWebhooks

if TYPE_CHECKING:  # it needs libraries that other workers do not
    from sandlot.worker.workspaces.objects.storage import ObjectStorage

log = structlog.get_logger("sandlot.worker")

# Seconds between two checks whether calls in progress have ended.
STOP_POLL_S = 0.05
# Seconds that a stop waits for commands whose callers wait for them or read their events.
EXECS_STOP_S = 2.0


class WorkerHost:
    """A worker, for many callers. Call ``open`` first.

    ``close`` keeps the sessions' sandboxes: the next process adopts them.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        database: Path,
        recipes: Mapping[str, Recipe],
        catalogue: Catalogue,
        options: WorkerOptions | None = None,
        registrar: Registrar | None = None,
        allowances: AllowancesOf = no_allowances,
        slots: ExecSlots | None = None,
        webhooks: WebhookOptions | None = None,
        tenant_policies: TenantPolicies | None = None,
        brokers: Brokers | None = None,
        objects: ObjectStorage | None = None,
        figures: Figures | None = None,
    ) -> None:
        """``figures``: where the worker counts, for the metrics."""
        self._provider = provider
        self._catalogue = catalogue
        self._options = options or WorkerOptions()
        registrar = registrar or Unregistered()
        slots = slots or ExecSlots(allowances, SlotsInMemory())
        self._tenant_policies = tenant_policies or TenantPolicies()
        self.figures = figures or Figures()
        self._parts = parts = assemble(
            provider,
            database,
            recipes,
            self._options,
            registrar,
            allowances,
            slots,
            webhooks,
            self._tenant_policies,
            brokers,
            objects,
            self.figures,
        )
        self._status = WorkerStatus(parts, self._options, registrar)
        self._store = parts.store
        self._sandboxes = parts.sandboxes
        self._environments = parts.environments
        self._one_off = parts.one_off
        self._sessions = parts.sessions
        self._opening = parts.opening
        self._moves = parts.moves
        self._creates = parts.creates
        self._disk = parts.disk
        self._reaper = parts.reaper
        self._policies = parts.policies

    def acting_for(self, principal: Principal) -> SandboxService:
        return scoped(self._service_of(principal), principal)

    def _service_of(self, principal: Principal) -> WorkerService:
        return WorkerService(principal, self._parts, self._options, self._catalogue, self._status)

    @property
    def recorder(self) -> Recorder:
        """Records in the worker's history what happens at the server's edge."""
        return self._parts.history.recorder

    @property
    def webhooks(self) -> WorkerWebhooks | None:
        """None if this worker sends none."""
        return self._parts.webhooks

    @property
    def policy_names(self) -> Collection[str]:
        """The command policies that a tenant can be given."""
        return self._tenant_policies.known.keys()

    # --- life ---------------------------------------------------------------------------------

    async def open(self) -> None:
        """Recover the sessions and sandboxes of an earlier process, and start to fill the pools."""
        await self._policies.open()
        await self._provider.open()
        await self._store.open()
        await self._parts.snapshots.records.open()
        await self._parts.artifacts.open()
        await self._parts.volumes.open()
        await self._parts.history.open()
        await self._parts.networks.open()
        if self._parts.webhooks is not None:
            await self._parts.webhooks.open()
        await self._disk.check()
        await recover(self._opening, self._sandboxes, self._store, self._options, time.time())
        if self._parts.exports is not None:
            self._parts.exports.start()
        await self._parts.readiness.look()
        self._reaper.start()
        self._status.open = True
        for pool in self._environments.pools.values():
            pool.fill()

    async def reload(
        self, recipes: Mapping[str, Recipe], catalogue: Catalogue, policies: Mapping[str, CommandPolicy]
    ) -> EnvironmentChanges:
        """Offer what the registry now declares. Sessions go on with the sandboxes that they have.

        Their commands and connections must pass the policies as they are now.
        """
        rebuilt = await self._provider.forget_rebuilt_images()
        await self._policies.reload(recipes, policies.keys())
        self._tenant_policies.replace_known(policies)
        self._catalogue = catalogue
        changes = self._environments.change(recipes, rebuilt)
        self._parts.networks.environments_changed(self._sessions.table)
        return changes

    async def stop(self) -> None:
        """Take no new sessions, and wait for calls that a stop would break: transfers and creates.

        Commands go on without this process, and their callers can ask the next one by exec id. So
        the wait for commands is short: most end soon.
        """
        self._status.stopping = True
        began = time.monotonic()
        while (passed_s := time.monotonic() - began) < self._options.drain_timeout_s:
            include_commands = passed_s < EXECS_STOP_S
            if not self._sessions.in_use(commands=include_commands) and not self._creates.under_way:
                break
            await asyncio.sleep(STOP_POLL_S)

    async def close(self) -> None:
        """Release everything except the sessions' sandboxes.

        Every step runs even if another one fails.
        """
        self._status.stopping = True
        if self._status.closed:
            return
        self._status.closed = True
        self._one_off.close()
        async with contextlib.AsyncExitStack() as steps:  # runs in reverse order
            steps.push_async_callback(self._policies.close)
            steps.push_async_callback(self._store.close)
            if (objects := self._parts.objects) is not None:
                steps.push_async_callback(objects.close)
            steps.push_async_callback(self._parts.snapshots.records.close)
            steps.push_async_callback(self._parts.artifacts.close)
            steps.push_async_callback(self._parts.volumes.close)
            if (exports := self._parts.exports) is not None:
                steps.push_async_callback(exports.close)
            if (imports := self._parts.imports) is not None:
                steps.push_async_callback(imports.close)
            if (webhooks := self._parts.webhooks) is not None:
                steps.push_async_callback(webhooks.close)
            steps.push_async_callback(self._parts.history.close)
            if webhooks is not None:
                steps.push_async_callback(webhooks.stop)
            steps.push_async_callback(self._provider.close)
            steps.push_async_callback(self._parts.bridges.close)
            steps.push_async_callback(self._parts.networks.close)
            steps.push_async_callback(self._sessions.close)
            steps.push_async_callback(self._creates.finish)
            steps.push_async_callback(self._environments.close)
            steps.push_async_callback(self._parts.seeds.close)
            steps.push_async_callback(self._reaper.close)

    @property
    def session_ids(self) -> set[str]:
        return {live_session.session.id for live_session in self._sessions.table}

    async def stop_opening(self) -> None:
        """Take no new sessions, and wait until those that are being opened are open."""
        self._status.stopping = True
        await self._creates.finish()

    async def delete_sessions(self, session_ids: Collection[str]) -> None:
        """End these sessions.

        A worker that lives only as long as its program does this before it closes.
        """
        live_sessions = [
            live_session for live_session in self._sessions.table if live_session.session.id in session_ids
        ]
        ends = (self._sessions.end(live_session, EndReason.DELETED) for live_session in live_sessions)
        for failure in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(failure, BaseException):
                log.warning("cannot remove a session's sandbox", error=str(failure))

    # --- as a member of a fleet ---------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the worker has recovered its sessions and so knows them."""
        return self._status.open

    @property
    def session_count(self) -> int:
        """How many active and lost sessions there are."""
        return len(self._sessions.table)

    @property
    def draining(self) -> bool:
        """Whether the worker takes no new sessions. It still serves those that it has."""
        return self._status.draining or self._status.stopping

    def set_draining(self, draining: bool) -> None:
        self._status.draining = draining

    def generation_of(self, session_id: str) -> int | None:
        """The generation of an active or lost session; None if the session is not here."""
        live_session = self._sessions.table.by_id(session_id)
        return None if live_session is None else live_session.session.generation

    def room(self) -> Mapping[str, tuple[int, int]]:
        """Per environment: warm sandboxes that are ready, and sessions that still fit in total."""
        return self._status.room()

    def condition(self) -> Condition:
        """The machine's use and its problems."""
        return self._status.condition()

    async def create_assigned(
        self, principal: Principal, request: CreateSession, assignment: Assignment
    ) -> Opened:
        """Create a session that a coordinator has placed here for ``principal``."""
        return await self._service_of(principal).create_session(request, assignment)

    async def list_saved_artifacts(
        self,
        principal: Principal,
        session_id: str | None,
        thread: str | None,
        after: str | None,
        limit: int,
        without: Collection[str],
    ) -> ArtifactPage:
        """What is in object storage of ``principal``, except of the workers with the tags ``without``."""
        artifacts = self._parts.artifacts
        return await artifacts.saved_page(principal.tenant, session_id, thread, after, limit, without)

    def recorded_sessions(self) -> Sequence[tuple[Session, str | None]]:
        """All active and lost sessions and recently ended ones, with their idempotency keys."""
        return self._moves.recorded_sessions()

    async def recorded_volumes(self) -> Sequence[Volume]:
        return await self._parts.volumes.all()

    async def adopt_lost_session(self, session: Session) -> Session | None:
        """Adopt a session, as lost, of an earlier worker with this one's id whose disk is gone."""
        return await self._moves.adopt_lost(session)

    async def give_up(self, session_ids: Collection[str]) -> None:
        """Drop sessions that now belong to another worker. Nothing of them stays here."""
        await self._moves.give_up(session_ids)

    async def warnings(self) -> Sequence[str]:
        """What an operator should know about the engine."""
        return await self._provider.warnings()

    async def tenant_of(self, session_id: str) -> str:
        live_session = self._sessions.table.by_id(session_id)
        if live_session is None:
            raise no_session_error(session_id)
        return live_session.session.tenant

    async def health(self) -> ServiceHealth:
        return self._status.health()

    async def use(self, holder: str) -> Use:
        return self._parts.quotas.use(holder)

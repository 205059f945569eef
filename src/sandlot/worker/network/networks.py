"""The networks of all sessions of a worker: what each may reach, and how that is changed and kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from sandlot.domain.callers.principal import Principal
from sandlot.domain.environment import Recipe
from sandlot.domain.errors import SandboxLost
from sandlot.domain.history.recorder import Recorder
from sandlot.domain.network.decisions import Denied
from sandlot.domain.network.policy import EgressPolicy
from sandlot.domain.network.session_egress import SessionEgress
from sandlot.domain.network.status import NetworkChange, NetworkStatus, Traffic, changed
from sandlot.domain.session import Session, SessionState
from sandlot.domain.session_states import ended_error
from sandlot.providers.base import Sandbox
from sandlot.worker.network.broker.broker import Broker
from sandlot.worker.network.broker.brokers import Brokers
from sandlot.worker.network.broker.trust import TRUST_PATH
from sandlot.worker.network.dialer import Dialer
from sandlot.worker.network.options import NetworkOptions
from sandlot.worker.network.session_network import SessionNetwork
from sandlot.worker.sessions.live_session import LiveSession
from sandlot.worker.store.database import SessionRecord, Store
from sandlot.worker.store.sandboxes import Sandboxes
from sandlot.worker.store.transitions import Transitions

NO_POLICY = EgressPolicy()


class Networks:
    """``recipes``: the worker's environments by name, as they are now."""

    def __init__(
        self,
        options: NetworkOptions,
        recipes: Mapping[str, Recipe],
        recorder: Recorder,
        store: Store,
        sandboxes: Sandboxes,
        transitions: Transitions,
        brokers: Brokers | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._options = options
        self._recipes = recipes
        self._recorder = recorder
        self._store = store
        self._sandboxes = sandboxes
        self._transitions = transitions
        self._brokers = brokers
        self._clock = clock
        self._dialer = Dialer(options.proxy)

    @property
    def traffic(self) -> Traffic:
        """What all sessions have done together since the worker started."""
        return self._dialer.total

    async def open(self) -> None:
        if self._brokers is not None:
            await self._brokers.open()

    async def close(self) -> None:
        if self._brokers is not None:
            await self._brokers.close()
        self._dialer.close()

    def variables(self, record: SessionRecord) -> dict[str, str]:
        """What lets programs of the session find its gateways and registries."""
        recipe = self._recipes.get(record.session.environment)
        if recipe is None or self._brokers is None:
            return {}
        return self._brokers.variables(recipe, self._egress(record), self._clock())

    def check_asked(self, recipe: Recipe, asked: EgressPolicy | None) -> None:
        """Raise ``InvalidRequest`` if a session may not ask for this policy."""
        if asked is not None:
            SessionEgress(recipe.network, ceiling=self._options.ceiling).asking(asked)

    def claimed(self, live_session: LiveSession, sandbox: Sandbox) -> None:
        """Serve a sandbox that the session has got, by its policy."""
        network = self._of(live_session)
        network.stop()
        network.begin(sandbox, self._sandboxes.take_listener(sandbox.id))

    async def adopted(self, live_session: LiveSession, sandbox: Sandbox) -> None:
        """Serve the session's sandbox again, after a restart of the worker."""
        network = self._of(live_session)
        network.stop()
        await network.resume(sandbox, live_session.record.forwards)
        await self._give_trust(live_session, sandbox)

    def must_prepare(self, live_session: LiveSession) -> bool:
        """Whether the session's sandbox needs something before its first call is let in."""
        return bool(live_session.record.forwards) or self._reads_tls(live_session)

    async def prepare(self, live_session: LiveSession, sandbox: Sandbox) -> None:
        """Open the forwarded ports, and give the sandbox what it must trust if its TLS is read."""
        await self._give_trust(live_session, sandbox)
        for forward in live_session.record.forwards:
            await self._of(live_session).forward(sandbox, forward)

    async def _give_trust(self, live_session: LiveSession, sandbox: Sandbox) -> None:
        if self._brokers is not None and self._reads_tls(live_session):
            await sandbox.files.write(TRUST_PATH, self._brokers.trust_bundle.encode())

    def _reads_tls(self, live_session: LiveSession) -> bool:
        recipe = self._recipes.get(live_session.session.environment)
        return self._brokers is not None and recipe is not None and bool(recipe.inject)

    def _of(self, live_session: LiveSession) -> SessionNetwork:
        if live_session.network is None:
            live_session.network = self._new(live_session)
        return live_session.network

    def status(self, live_session: LiveSession) -> NetworkStatus:
        network = live_session.network or self._new(live_session)
        return network.status(live_session.record.forwards)

    async def change(
        self, live_session: LiveSession, change: NetworkChange, caller: Principal
    ) -> NetworkStatus:
        """Decide, open new ports, record, and only then let connections through."""
        async with live_session.transition_lock:
            if live_session.session.state is SessionState.ENDED:
                raise ended_error(live_session.session)
            record = live_session.record
            egress, forwards = changed(self._egress(record), record.forwards, change, self._clock())
            network, sandbox = live_session.network, live_session.sandbox
            added = [forward for forward in forwards if forward not in record.forwards]
            removed = [forward for forward in record.forwards if forward not in forwards]
            opened = []
            try:
                for forward in added:
                    if network is None or sandbox is None:
                        raise SandboxLost(
                            f"Session {live_session.session.id} has no sandbox to forward a port in. "
                            "Recreate it first.",
                            may_have_executed=False,
                        )
                    await network.forward(sandbox, forward)
                    opened.append(forward)

                def applied(old: SessionRecord) -> SessionRecord:
                    session: Session = replace(old.session, network=egress.own)
                    return replace(old, session=session, grants=egress.grants, forwards=forwards)

                await self._store.save([applied(record)])
            except BaseException:
                for forward in opened:
                    if network is not None:
                        await network.unforward(forward)
                raise
            self._transitions.drop_pending(live_session.session.id)
            # Applied again to the current record: a call may have touched the session meanwhile.
            live_session.record = applied(live_session.record)
            if network is not None:
                network.apply(self._egress(live_session.record))  # the environment may have changed meanwhile
                for forward in removed:
                    await network.unforward(forward)
        self._recorder.network_changed(live_session.session, change, caller)
        return self.status(live_session)

    def environments_changed(self, live_sessions: Iterable[LiveSession]) -> None:
        """Let running sessions reach what their environments allow now."""
        served = [(each, each.network) for each in live_sessions if each.network is not None]
        for live_session, network in served:
            network.apply(self._egress(live_session.record))
        for live_session, network in served:
            network.use(self._broker(live_session.session))

    def _new(self, live_session: LiveSession) -> SessionNetwork:
        return SessionNetwork(
            live_session.session.id,
            self._egress(live_session.record),
            self._dialer,
            self._options.proxy,
            partial(self._report, live_session),
            self._clock,
            self._broker(live_session.session),
        )

    def _broker(self, session: Session) -> Broker | None:
        recipe = self._recipes.get(session.environment)
        return None if recipe is None or self._brokers is None else self._brokers.broker_of(session, recipe)

    def _egress(self, record: SessionRecord) -> SessionEgress:
        recipe = self._recipes.get(record.session.environment)
        # Nobody knows what an environment denied that the registry no longer has. So all is denied.
        return SessionEgress(
            environment=NO_POLICY if recipe is None else recipe.network,
            own=record.session.network,
            ceiling=NO_POLICY if recipe is None else self._options.ceiling,
            grants=record.grants,
        )

    def _report(self, live_session: LiveSession, denied: Denied) -> None:
        self._recorder.network_denied(live_session.session, denied)

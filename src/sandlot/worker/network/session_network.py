"""The network of one session: its policy, the proxy that carries it out, and the listeners inside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import structlog

from sandlot.domain.environment import proxy_port
from sandlot.domain.errors import SandboxLost, SandlotError, Unsupported
from sandlot.domain.network.decisions import Denied
from sandlot.domain.network.session_egress import SessionEgress
from sandlot.domain.network.status import Forward, NetworkStatus
from sandlot.domain.network.variables import local_address
from sandlot.providers.base import PortListener, Sandbox
from sandlot.worker.network.broker.broker import Broker
from sandlot.worker.network.dialer import Dialer
from sandlot.worker.network.exec_denials import ExecDenials
from sandlot.worker.network.options import ProxyOptions
from sandlot.worker.network.proxy import EgressProxy

log = structlog.get_logger("sandlot.network")

# Seconds before a listener that broke is opened again.
FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 5.0

Serve = Callable[[PortListener], Awaitable[None]]


class SessionNetwork:
    """``egress``: what the session may reach; ``apply`` changes it."""

    def __init__(
        self,
        session_id: str,
        egress: SessionEgress,
        dialer: Dialer,
        options: ProxyOptions,
        report: Callable[[Denied], None],
        clock: Callable[[], float] = time.time,
        broker: Broker | None = None,
    ) -> None:
        self.egress = egress
        self._session_id = session_id
        self._clock = clock
        self._proxy = EgressProxy(lambda: self.egress, dialer, options, report, clock, broker)
        self.execs = ExecDenials(self._proxy.denied_since, clock)
        self._listening: dict[int, asyncio.Task[None]] = {}
        self._next_expiry: asyncio.TimerHandle | None = None  # when the next grant ends

    def status(self, forwards: tuple[Forward, ...]) -> NetworkStatus:
        return NetworkStatus.of(
            self.egress, forwards, self._proxy.traffic, self._proxy.denied_since(0), self._clock()
        )

    def begin(self, sandbox: Sandbox, listener: PortListener) -> None:
        """Serve a sandbox that the session has got. ``listener``: the proxy's, open since it was made."""
        self.execs.forget()
        self._watch_grants()
        self._start(sandbox, proxy_port(sandbox.tier), self._proxy.serve_listener, listener)

    async def resume(self, sandbox: Sandbox, forwards: tuple[Forward, ...]) -> None:
        """Serve the session's sandbox again, after a restart of the worker.

        A port that cannot be opened now is tried again and again: a program inside may have taken it.
        """
        self._watch_grants()
        await self._resume(sandbox, proxy_port(sandbox.tier), self._proxy.serve_listener)
        for forward in forwards:
            await self._resume(sandbox, forward.port, self._serving(forward))

    async def _resume(self, sandbox: Sandbox, port: int, serve: Serve) -> None:
        try:
            listener = await sandbox.listen(local_address(port))
        except SandboxLost:
            raise
        except SandlotError as error:
            log.warning("cannot listen", session=self._session_id, port=port, error=error.message)
            if not isinstance(error, Unsupported):  # by the agent of an older version, for good
                self._start(sandbox, port, serve, None)
        else:
            self._start(sandbox, port, serve, listener)

    async def forward(self, sandbox: Sandbox, forward: Forward) -> None:
        """Raises if the port cannot be opened."""
        listener = await sandbox.listen(local_address(forward.port))
        self._start(sandbox, forward.port, self._serving(forward), listener)

    def _serving(self, forward: Forward) -> Serve:
        return partial(self._proxy.serve_forward, target=forward.leads_to)

    async def unforward(self, forward: Forward) -> None:
        if (task := self._listening.pop(forward.port, None)) is not None:
            task.cancel()
            await asyncio.wait([task])
        self._proxy.end_connections_to(forward.leads_to)

    def apply(self, egress: SessionEgress) -> None:
        """Let the session reach this from now on, and end the connections that are no longer allowed."""
        self.egress = egress
        self._recheck()

    def use(self, broker: Broker | None) -> None:
        """Let the session use these gateways and secrets from now on.

        TLS is read only if it was before: otherwise the sandbox does not trust the worker's authority.
        """
        if broker is not None and (self._proxy.broker is None or self._proxy.broker.authority is None):
            broker.authority = None
        self._proxy.broker = broker

    def _recheck(self) -> None:
        """Also called whenever a grant ends."""
        self._proxy.recheck()
        self._watch_grants()

    def stop(self) -> list[asyncio.Task[None]]:
        """Stop listening and end all connections. Returns the tasks that end with it."""
        tasks = [*self._listening.values(), *self._proxy.stop()]
        for task in self._listening.values():
            task.cancel()
        self._listening.clear()
        self._forget_grants()
        return tasks

    def _watch_grants(self) -> None:
        self._forget_grants()
        now = self._clock()
        ends = [grant.until for grant in self.egress.grants if grant.until is not None and grant.until > now]
        if ends:
            self._next_expiry = asyncio.get_running_loop().call_later(min(ends) - now, self._recheck)

    def _forget_grants(self) -> None:
        if self._next_expiry is not None:
            self._next_expiry.cancel()
            self._next_expiry = None

    def _start(self, sandbox: Sandbox, port: int, serve: Serve, listener: PortListener | None) -> None:
        self._listening[port] = asyncio.create_task(
            self._keep_listening(sandbox, port, serve, listener),
            name=f"listen on {port} of {self._session_id}",
        )

    async def _keep_listening(
        self, sandbox: Sandbox, port: int, serve: Serve, listener: PortListener | None
    ) -> None:
        """The port is opened again whenever it breaks, as at a redial."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                if listener is None:
                    listener = await sandbox.listen(local_address(port))
                pause_s = FIRST_PAUSE_S
                await serve(listener)
            except SandboxLost:
                return
            except SandlotError as error:
                log.info("listener broke", session=self._session_id, port=port, error=error.message)
            listener = None
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

"""``AsyncNetwork``: what a session's sandbox may connect to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sandlot.domain.network.policy import EgressPolicy
from sandlot.domain.network.status import Forward, NetworkChange, NetworkStatus, parse_network
from sandlot.domain.service import SandboxService

# ``none``, ``public``, a list of what to allow, a mapping with ``allow``, ``deny`` and ``caps``, or a policy.
NetworkPolicy = str | Sequence[str] | Mapping[str, Any] | EgressPolicy


def network_policy(policy: NetworkPolicy | None) -> EgressPolicy | None:
    """The policy that a caller means. A single host or preset may stand without a list."""
    if policy is None or isinstance(policy, EgressPolicy):
        return policy
    if isinstance(policy, str) and policy not in ("none", "public"):
        policy = [policy]
    return parse_network(policy)


class AsyncNetwork:
    """What a session's sandbox may connect to: see it, allow more for a while, lead a port outside.

    A sandbox has no network of its own. The server makes its connections, by the session's policy.
    """

    def __init__(self, service: SandboxService, session_id: str) -> None:
        self._service = service
        self._session_id = session_id

    async def policy(self) -> EgressPolicy:
        """Return the rules and caps that hold, without what was allowed later."""
        return (await self.status()).policy

    async def status(self) -> NetworkStatus:
        """Return the policy, what was allowed later, forwards, traffic and the latest denials."""
        return await self._service.get_network(self._session_id)

    async def allow(self, *entries: str, for_s: float | None = None) -> NetworkStatus:
        """Also allow hosts or presets, such as ``allow("example.com", "pypi", for_s=600)``.

        ``for_s``: for how many seconds. Without it, they stay allowed as long as the session lives. Rules
        that deny still win.
        """
        return await self._change(NetworkChange(allow=entries, for_s=for_s))

    async def revoke(self, *entries: str) -> NetworkStatus:
        """Take back what ``allow`` has allowed. Open connections to it end."""
        return await self._change(NetworkChange(revoke=entries))

    async def set(self, policy: NetworkPolicy) -> NetworkStatus:
        """Replace the session's policy, and end all that ``allow`` has allowed.

        ``policy``: ``"none"``, ``"public"``, a host or preset, a list of them, or a mapping with ``allow``,
        ``deny`` and ``caps``.
        """
        return await self._change(NetworkChange(policy=network_policy(policy)))

    async def forward(self, port: int, target: str) -> NetworkStatus:
        """Lead 127.0.0.1:``port`` inside to one host outside: ``forward(5432, "db.example.com:5432")``.

        It is for programs that know no proxy, such as database clients. The policy must allow the host with
        its port.
        """
        return await self._change(NetworkChange(forward=(Forward(port, target),)))

    async def unforward(self, port: int) -> NetworkStatus:
        """Close a port that ``forward`` has opened. Its connections end."""
        return await self._change(NetworkChange(unforward=(port,)))

    async def _change(self, change: NetworkChange) -> NetworkStatus:
        return await self._service.change_network(self._session_id, change)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._session_id}>"

"""Connects to hosts outside on behalf of sandboxes: resolve, check every address, connect to one of them."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import cached_property
from ipaddress import ip_address

from sandlot.domain.network.addresses import Address, Networks, is_public
from sandlot.domain.network.decisions import Denied
from sandlot.domain.network.hosts import Target
from sandlot.domain.network.status import Traffic
from sandlot.worker.network.meter import PieceTurns
from sandlot.worker.network.names import Names, connect_to_one
from sandlot.worker.network.options import ProxyOptions
from sandlot.worker.network.streams import HostStream

# Why an address may not be reached by the session's policy; None if it may.
DenialOf = Callable[[Target, Address], Denied | None]


class EgressDenied(Exception):
    def __init__(self, denied: Denied) -> None:
        super().__init__(denied.text)
        self.denied = denied


class Dialer:
    """One for all sessions of a worker. ``total``: the traffic of all of them.

    ``trust``: which certificates hosts may show where the worker itself speaks TLS; those that the system
    trusts unless stated.
    """

    def __init__(self, options: ProxyOptions, trust: ssl.SSLContext | None = None) -> None:
        self._allowed = options.allowed
        self._trust = trust
        self._connect_s = options.connect_s
        self._names = Names(options.resolving_in_all, "egress")
        self.turns = PieceTurns()
        self.total = Traffic()

    def close(self) -> None:
        self._names.close()

    async def connect(
        self,
        target: Target,
        denial_of: DenialOf,
        resolving: asyncio.Semaphore,
        *,
        tls: bool = False,
        declared: bool = False,
    ) -> HostStream:
        """``resolving``: bounds the names that one session resolves at once. ``tls``: whether the worker
        speaks TLS with the host. ``declared``: whether the operator named this host as an upstream; it may
        then have a private address.

        Raises ``EgressDenied``, ``TimeoutError``, or ``OSError`` if the host cannot be reached.
        """

        def check(text: str) -> None:
            address = ip_address(text)
            if not declared and not _reachable(address, self._allowed):
                raise EgressDenied(_not_public(target))
            if (denied := denial_of(target, address)) is not None:
                raise EgressDenied(denied)

        async with asyncio.timeout(self._connect_s):
            if target.host.is_name:
                addresses = await self._names.resolve(target.host.text, target.port, check, resolving)
            else:
                check(target.host.text)
                addresses = [target.host.text]
            return await connect_to_one(
                addresses,
                lambda each: HostStream.connect(
                    each, target.port, self._tls if tls else None, target.host.text if tls else None
                ),
            )

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context() if self._trust is None else self._trust
        context.set_alpn_protocols(["http/1.1"])
        return context


def _reachable(address: Address, allowed: Networks) -> bool:
    if any(address in network for network in allowed):
        return True
    return is_public(address) and not _is_this_machine(address)


def _is_this_machine(address: Address) -> bool:
    """Whether the address is the machine's own: a firewall may hide services there from everyone else.

    Connecting a datagram socket sends nothing. It only chooses the address to send from.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))
        except OSError:
            return False
        return ip_address(probe.getsockname()[0]) == address


def _not_public(target: Target) -> Denied:
    """Without the address: a program need not know how names resolve on the worker's machine."""
    return Denied(
        target=str(target),
        rule="not a public address",
        why="It leads to a private, local or reserved address, which no policy allows.",
        ask="Only the operator can let sandboxes reach such an address.",
    )

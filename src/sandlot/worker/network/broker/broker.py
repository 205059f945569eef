"""What one session may use of the worker's secrets, and how requests get them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

import h11

from sandlot.domain.network.decisions import Denied
from sandlot.domain.network.hosts import Target, shown
from sandlot.domain.secrets.gateways import GATEWAY_HOST, GATEWAY_URL, HTTP_PORT, Gateway
from sandlot.domain.secrets.secret import TLS_PORT, Secret
from sandlot.domain.text.suggestions import did_you_mean
from sandlot.worker.network.broker.redaction import Redaction
from sandlot.worker.network.dialer import EgressDenied
from sandlot.worker.network.http import BadRequest, request_for_host
from sandlot.worker.network.requests.exchange import Outgoing
from sandlot.worker.secrets.vault import Vault

if TYPE_CHECKING:
    from sandlot.worker.network.broker.authority import Authority
    from sandlot.worker.network.cache.package_cache import PackageCache

# The answer to TRACE is the request itself.
_REPEATING: Final = (b"TRACE", b"TRACK")


class UnknownGateway(Exception):
    """The path of a request names no gateway of this session."""


class Broker:
    """``gateways`` and ``inject``: as the session's environment declares them. ``authority``: signs the
    certificates with which the worker reads TLS; None if it never does. ``packages``: the worker's package
    cache; None if it has none."""

    def __init__(
        self,
        vault: Vault,
        tenant: str,
        environment: str,
        gateways: Iterable[Gateway] = (),
        inject: Iterable[str] = (),
        authority: Authority | None = None,
        packages: PackageCache | None = None,
    ) -> None:
        self._vault = vault
        self._tenant = tenant
        self._environment = environment
        self._gateways = {gateway.name: gateway for gateway in gateways}
        self._inject = tuple(inject)
        self.authority = authority
        self.packages = packages

    @property
    def gateway_names(self) -> tuple[str, ...]:
        cached = () if self.packages is None else self.packages.registries
        return (*self._gateways, *cached)

    def through_gateway(self, request: h11.Request, name: str, rest: bytes) -> Outgoing:
        """Raises ``UnknownGateway``, and ``EgressDenied`` if the session may not use its secret."""
        gateway = self._gateways.get(name)
        if gateway is None:
            raise UnknownGateway(name)
        upstream = gateway.upstream
        path = (upstream.path.encode() + rest) or b"/"
        port = TLS_PORT if upstream.tls else HTTP_PORT
        outgoing = Outgoing(
            upstream.target,
            request_for_host(request, upstream.target, path, port),
            tls=upstream.tls,
            declared=True,
        )
        if gateway.secret is None:
            return outgoing
        secret = self._find(gateway.secret, upstream.target)
        if secret is None:
            raise EgressDenied(_no_secret(gateway))
        return _with_secrets(outgoing, [secret])

    def reads_tls_of(self, target: Target) -> bool:
        """Whether a secret of the session goes to the target by reading its TLS."""
        return self.authority is not None and bool(self._injected(target))

    def inject(self, outgoing: Outgoing) -> Outgoing:
        return _with_secrets(outgoing, self._injected(outgoing.target))

    def _injected(self, target: Target) -> list[Secret]:
        found = (self._find(name, target) for name in self._inject)
        return [secret for secret in found if secret is not None]

    def _find(self, name: str, target: Target) -> Secret | None:
        return self._vault.find(name, self._tenant, self._environment, target)


def split_gateway_path(path: bytes) -> tuple[str, bytes]:
    """The name of the gateway, and what to ask for at its upstream."""
    plain = path.partition(b"?")[0]
    parts = unquote_to_bytes(plain).replace(b"\\", b"/").split(b"/")
    if b"." in parts or b".." in parts:
        raise BadRequest("The path of a gateway has '.' or '..' in it.")
    name = plain[1:].partition(b"/")[0]
    return name.decode("latin-1"), path[1 + len(name) :]


def gateways_speak_http(target: Target) -> BadRequest:
    return BadRequest(f"{target} does not exist. Gateways speak http: {GATEWAY_URL}/NAME/PATH.")


def unknown_gateway(name: str, known: Iterable[str]) -> str:
    """What a program reads that asks for a gateway which the session does not have."""
    names = tuple(known)
    listed = f"It has: {', '.join(names)}." if names else "It has none."
    return (
        f"This sandbox has no gateway {shown(name)}.{did_you_mean(name[:80], names)} {listed} Gateways are "
        "declared in the environment of the session.\n"
    )


def _with_secrets(outgoing: Outgoing, secrets: list[Secret]) -> Outgoing:
    head = outgoing.head
    if head.method.upper() in _REPEATING:
        raise BadRequest("A request with a secret cannot be TRACE: its answer would be the secret.")
    target = bytes(head.target)
    # Compressed, the answer could not be searched for the secret.
    headers = [(bytes(name), bytes(value)) for name, value in head.headers if name != b"accept-encoding"]
    headers.append((b"accept-encoding", b"identity"))
    hidden: list[bytes] = []
    for secret in secrets:
        target, headers = secret.placement.placed(secret.value, target, headers)
        hidden += (spelling.encode() for spelling in secret.placement.spellings(secret.value))
    changed = h11.Request(method=head.method, target=target, headers=headers)
    return replace(outgoing, head=changed, redaction=Redaction(hidden))


def _no_secret(gateway: Gateway) -> Denied:
    return Denied(
        target=f"{GATEWAY_HOST}/{gateway.name}",
        rule=f"secret: {gateway.secret}",
        why=f"The worker has no secret {gateway.secret} that this session may send to {gateway.upstream}.",
        ask=f"Ask the operator to run `sandlot secrets set {gateway.secret}` on the worker's machine, for "
        "this host, tenant and environment.",
    )

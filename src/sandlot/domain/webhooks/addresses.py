"""Which addresses a webhook may be sent to: public ones, and those that the operator allows. Pure.

A tenant chooses the address, and the server has the machine's view of the network. Without this check a
tenant could reach what is meant for the machine alone: other services on it, a cloud's metadata, a router.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from sandlot.domain.errors import InvalidRequest

Networks = tuple[IPv4Network | IPv6Network, ...]
Address = IPv4Address | IPv6Address

_GLOBAL_V6: Final = IPv6Network("2000::/3")
# The addresses by which a network without IPv4 reaches IPv4 hosts.
_NAT64: Final = IPv6Network("64:ff9b::/96")
# Not all versions of Python call these private. The last one is Azure's metadata, at a public address.
_NEVER: Final[Networks] = tuple(
    ip_network(text)
    for text in (
        "192.0.0.0/24",
        "192.88.99.0/24",
        "2001::/23",
        "2001:db8::/32",
        "2002::/16",
        "3fff::/20",
        "168.63.129.16/32",
    )
)


def parse_networks(texts: Iterable[str]) -> Networks:
    found = []
    for text in texts:
        try:
            found.append(ip_network(text))
        except ValueError as error:
            raise InvalidRequest(
                f"{text!r:.80} is not a range of addresses ({error}). Write 10.1.2.0/24 or fd00::/8."
            ) from None
    return tuple(found)


def refusal_of(host: str, allowed: Networks, *, encrypted: bool) -> str | None:
    """Why nothing may be sent to this address; None if it may. A name is not refused: its addresses are.

    ``encrypted``: whether the URL is https. Without it, only addresses that the operator allows are reached:
    deliveries have commands in them, which must not cross the internet in the clear.
    """
    try:
        address = ip_address(host)
    except ValueError:
        return None
    if any(address in network for network in allowed):
        return None
    if not _is_public(address):
        return (
            "Webhooks may not be sent to a private, local or reserved address. The operator can allow one "
            "with SANDLOT_WEBHOOK_ALLOW."
        )
    if not encrypted:
        return "Use https: webhooks are sent in the clear only to addresses in SANDLOT_WEBHOOK_ALLOW."
    return None


def _is_public(address: Address) -> bool:
    if any(address in network for network in _NEVER):
        return False
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return _is_public(IPv4Address(int(address) & 0xFFFFFFFF))
        return address.scope_id is None and address in _GLOBAL_V6 and address.is_global
    return address.is_global and not address.is_multicast

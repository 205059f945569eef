"""Which addresses are public, and what an address means however it is spelled. Pure.

The worker has the machine's view of the network. Whoever chooses where it connects, a tenant by a webhook or
a program in a sandbox by the proxy, could reach what is meant for the machine alone: other services on it, a
cloud's metadata, a router.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
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
# One part of an IPv4 address as inet_aton reads it: hexadecimal, octal or decimal. The digits are bounded
# because int() of a long text takes long.
_NUMBER: Final = re.compile(r"0[xX][0-9a-fA-F]{0,16}|[0-9]{1,16}")
_ENDS_IN_NUMBER: Final = re.compile(r"(?:.*\.)?(?:[0-9]+|0[xX][0-9a-fA-F]*)\Z", re.DOTALL)


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


def is_public(address: Address) -> bool:
    """Whether anyone on the internet may have this address: it is not private, local or reserved."""
    if any(address in network for network in _NEVER):
        return False
    if isinstance(address, IPv6Address):
        if (embedded := embedded_v4(address)) is not None:
            return is_public(embedded)
        return address.scope_id is None and address in _GLOBAL_V6 and address.is_global
    return address.is_global and not address.is_multicast


def embedded_v4(address: Address) -> IPv4Address | None:
    """The IPv4 address that a NAT64 address leads to; None for any other address."""
    if isinstance(address, IPv6Address) and address.scope_id is None and address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def ends_in_number(host: str) -> bool:
    """Whether the last part of a host is a number. Such a host is an IPv4 address or nothing: no name of
    the internet ends so, and the C library takes it for an address."""
    return _ENDS_IN_NUMBER.match(host) is not None


def parse_v4(text: str) -> IPv4Address | None:
    """The address that the C library's inet_aton sees: also 2130706433, 0177.0.0.1, 0x7f.1 and 127.1."""
    parts = text.split(".")
    if len(parts) > 4:
        return None
    numbers = [_number(part) for part in parts]
    whole = 0
    for number in numbers[:-1]:
        if number is None or number > 0xFF:
            return None
        whole = whole << 8 | number
    # The last part fills the bytes that are left.
    left, last = 5 - len(parts), numbers[-1]
    if last is None or last >= 1 << 8 * left:
        return None
    return IPv4Address(whole << 8 * left | last)


def _number(text: str) -> int | None:
    if _NUMBER.fullmatch(text) is None:
        return None
    try:
        if text[:2] in ("0x", "0X"):
            return int(text[2:] or "0", 16)
        return int(text, 8 if text[0] == "0" else 10)
    except ValueError:  # an octal number with an 8 or a 9
        return None

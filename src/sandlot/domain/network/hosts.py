"""Hosts as programs write them, and what each of them is: a name or an address. Pure.

A check that reads a host in one way while the system connects in another is no check. So a host is read once,
here, and everything after uses what was read: ``127.1``, ``0x7f000001`` and ``127.0.0.1.`` are the address
127.0.0.1, ``EXAMPLE.com.`` is the name example.com, and what could mean two things is no host at all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Final

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.network.addresses import Address, ends_in_number, parse_v4

MAX_NAME_CHARS: Final = 253  # as DNS has it
MAX_SHOWN_CHARS: Final = 100  # of a text that is no host, in an error

_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_PORT: Final = re.compile(r"[1-9][0-9]{0,4}")
# The characters of an IPv6 address. A zone such as %eth0 is for an interface of the machine.
_V6: Final = re.compile(r"[0-9A-Fa-f:.]{2,45}")


@dataclass(frozen=True, slots=True)
class Host:
    """``address``: what it is, if it is an address. Otherwise ``text`` is a name: in lower case, ASCII, and
    without the dot at its end."""

    text: str
    address: Address | None = None

    @property
    def is_name(self) -> bool:
        return self.address is None

    def __str__(self) -> str:
        """As in a URL: an IPv6 address is in brackets."""
        return f"[{self.text}]" if isinstance(self.address, IPv6Address) else self.text


@dataclass(frozen=True, slots=True)
class Target:
    """A host and a port: where a connection leads to."""

    host: Host
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_host(text: str) -> Host:
    """A host of a URL or of CONNECT. Raises ``InvalidRequest`` for anything that is not exactly one host."""
    if len(text) > MAX_NAME_CHARS + 1:
        raise _not_a_host(text, "it is too long")
    if text.startswith("["):
        if not text.endswith("]"):
            raise _not_a_host(text, "the bracket is not closed")
        return address_host(_parse_v6(text[1:-1], text))
    if not text.isascii():  # before lower(), which makes ASCII of the Kelvin sign
        raise _not_a_host(text, f"it is not ASCII{_ascii_form(text)}")
    name = text.lower().removesuffix(".")
    if ends_in_number(name):
        if (address := parse_v4(name)) is None:
            raise _not_a_host(text, "it ends in a number and is no IPv4 address")
        return address_host(address)
    if ":" in name:
        raise _not_a_host(text, "an IPv6 address is written in brackets")
    if len(name) > MAX_NAME_CHARS or not all(_LABEL.fullmatch(label) for label in name.split(".")):
        raise _not_a_host(text, "a name has letters, digits and hyphens, with dots between its parts")
    return Host(name)


def parse_target(text: str, default_port: int | None = None) -> Target:
    """HOST:PORT, as in CONNECT and in a Host header. Without ``default_port``, the port must be there."""
    host, colon, port = text.rpartition(":")
    if not colon or (text.startswith("[") and text.endswith("]")):
        if default_port is None:
            raise InvalidRequest(f"{shown(text)} has no port. Write HOST:PORT.")
        return Target(parse_host(text), default_port)
    return Target(parse_host(host), parse_port(port))


def parse_port(text: str) -> int:
    if _PORT.fullmatch(text) is None or int(text) > 65535:
        raise InvalidRequest(f"{shown(text)} is not a port. A port is a number from 1 to 65535.")
    return int(text)


def address_host(address: Address) -> Host:
    return Host(str(address), address)


def shown(text: str) -> str:
    """Untrusted text in an error: bounded, and inert in a terminal."""
    return repr(text[:MAX_SHOWN_CHARS] + ("…" if len(text) > MAX_SHOWN_CHARS else ""))


def _parse_v6(text: str, whole: str) -> IPv6Address:
    try:
        if _V6.fullmatch(text) is not None:
            return IPv6Address(text)
    except ValueError:
        pass
    raise _not_a_host(whole, "what is in brackets must be an IPv6 address without a zone")


def _ascii_form(text: str) -> str:
    """How to write it, where that is clear. The form is never used unasked: names that look alike differ."""
    if len(text) > MAX_NAME_CHARS:
        return ""
    try:
        return f"; write {parse_host(text.encode('idna').decode())}"
    except (UnicodeError, InvalidRequest):
        return ""


def _not_a_host(text: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{shown(text)} is not a host: {why}.")

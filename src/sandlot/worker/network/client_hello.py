"""Reads the first message of a TLS client, for the name of the server that it wants (SNI).

A message that a server could read in another way is refused: lengths must fit exactly, and there is one name.
The bytes themselves go to the server unchanged. RFC 8446, section 4.1.2, and RFC 6066, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_HELLO_BYTES: Final = 64 * 1024
# Records that one hello may come in. Clients use one or two; each costs a few steps here.
MAX_RECORDS: Final = 64
# A fatal alert, access_denied. A client shows it as such; a closed connection looks like a fault.
ACCESS_DENIED: Final = bytes([21, 3, 1, 0, 2, 2, 49])

_HANDSHAKE: Final = 22
_BEGINNING: Final = bytes([_HANDSHAKE, 3])
_MAX_RECORD_BYTES: Final = 16384
_CLIENT_HELLO: Final = 1
_SERVER_NAME: Final = 0
_HOST_NAME: Final = 0


class NotTls(Exception):
    """The bytes are not the beginning of TLS."""


class MalformedHello(Exception):
    """The bytes begin as TLS does, but are not a ClientHello that can be trusted."""


@dataclass(frozen=True, slots=True)
class ClientHello:
    """``server_name``: which server the client wants; None if it does not say."""

    server_name: str | None


class ClientHelloReader:
    def __init__(self) -> None:
        self.received = bytearray()
        self._read = 0  # of what was received, up to the end of a record
        self._records = 0
        self._message = bytearray()

    def feed(self, data: bytes) -> ClientHello | None:
        """The hello, once all of it is there."""
        self.received += data
        if not _BEGINNING.startswith(self.received[:2]):
            raise NotTls
        while len(self.received) >= self._read + 5:
            size = int.from_bytes(self.received[self._read + 3 : self._read + 5])
            if self.received[self._read] != _HANDSHAKE or not 0 < size <= _MAX_RECORD_BYTES:
                raise MalformedHello("a record is not one of a handshake")
            if len(self.received) < self._read + 5 + size:
                break
            self._records += 1
            if self._records > MAX_RECORDS:
                raise MalformedHello("the hello comes in too many records")
            self._message += self.received[self._read + 5 : self._read + 5 + size]
            self._read += 5 + size
            if (hello := self._whole()) is not None:
                return hello
        return None

    def _whole(self) -> ClientHello | None:
        if self._message[0] != _CLIENT_HELLO:
            raise MalformedHello("the first message is not a ClientHello")
        if len(self._message) < 4:
            return None
        size = int.from_bytes(self._message[1:4])
        if size > MAX_HELLO_BYTES:
            raise MalformedHello("the hello is too large")
        if len(self._message) < 4 + size:
            return None
        if len(self._message) > 4 + size:
            raise MalformedHello("something follows the hello in its record")
        return _parse(bytes(self._message[4:]))


class _Fields:
    """Reads fields one after the other. What is missing is an error."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise MalformedHello("a field is cut off")
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size))

    def vector(self, length_bytes: int) -> _Fields:
        return _Fields(self.take(self.number(length_bytes)))

    def end(self) -> None:
        if self.left:
            raise MalformedHello("a field is too long")


def _parse(body: bytes) -> ClientHello:
    hello = _Fields(body)
    hello.take(2 + 32)  # version, random
    hello.vector(1)  # session id
    hello.vector(2)  # cipher suites
    hello.vector(1)  # compression methods
    if not hello.left:
        return ClientHello(None)
    extensions = hello.vector(2)
    hello.end()
    name: str | None = None
    seen: set[int] = set()
    while extensions.left:
        kind, content = extensions.number(2), extensions.vector(2)
        if kind in seen:
            raise MalformedHello("an extension comes twice")
        seen.add(kind)
        if kind == _SERVER_NAME:
            name = _server_name(content)
    return ClientHello(name)


def _server_name(content: _Fields) -> str:
    names = content.vector(2)
    content.end()
    if names.number(1) != _HOST_NAME:
        raise MalformedHello("the name of the server is of an unknown type")
    name = names.vector(2)
    names.end()
    text = name.take(name.left)
    if not text or not text.isascii():
        raise MalformedHello("the name of the server is not ASCII")
    return text.decode("ascii")

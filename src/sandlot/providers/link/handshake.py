"""The handshake identifies a peer, agrees on a protocol version, and makes it prove the secret.

Pure: it takes frames and returns frames, or raises a refusal. The caller owns the clock and the
socket. Three things can be wrong with a peer: it breaks the protocol (``ProtocolViolation``), it is
the wrong peer (``Refused``), or it is silent (the caller's deadline).
"""

from __future__ import annotations

import hmac
import secrets
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from sandlot.wire.agent_messages import flag, text
from sandlot.wire.frames import Frame, Kind, ProtocolViolation, encode, encode_object, parse_object

PROTOCOL: Final = (1, 2)
SECRET_BYTES: Final = 32
_NONCE_BYTES: Final = 32
_BOOT_BYTES: Final = 16
_MAX_VERSION: Final = 2**31


class Role(StrEnum):
    CORE = "core"
    FILES = "files"
    NET = "net"


class Refused(Exception):
    """The worker refuses this peer, and sends it ``code`` and ``message``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Hello:
    minor: int
    agent: str
    role: Role
    boot: str
    nonce: bytes
    known: bool


@dataclass(frozen=True, slots=True)
class HandshakeResult:
    """What both sides agreed on in a finished handshake."""

    role: Role
    minor: int
    agent: str
    boot: str


def worker_proof(secret: bytes, agent_nonce: bytes, epoch: int, role: Role) -> bytes:
    return _proof(secret, b"worker", agent_nonce, epoch, role)


def agent_proof(secret: bytes, worker_nonce: bytes, epoch: int, role: Role) -> bytes:
    return _proof(secret, b"agent", worker_nonce, epoch, role)


def _proof(secret: bytes, side: bytes, nonce: bytes, epoch: int, role: Role) -> bytes:
    return hmac.digest(secret, side + nonce + struct.pack(">Q", epoch) + role.encode(), "sha256")


def encode_refusal(refused: Refused) -> bytes:
    body = {"code": refused.code, "message": refused.message}
    return encode(Kind.REFUSE, 0, encode_object(body))


def parse_hello(body: dict[str, Any]) -> Hello:
    """Parses HELLO, version first: in another major version, other fields may mean anything."""
    version = body.get("protocol")
    if (
        type(version) is not list
        or len(version) != 2
        or not all(type(part) is int and 0 <= part < _MAX_VERSION for part in version)
    ):
        raise ProtocolViolation("protocol is not [major, minor]")
    if version[0] != PROTOCOL[0]:
        raise Refused("incompatible", f"the worker speaks protocol {PROTOCOL[0]}, the agent {version[0]}")
    role = text(body, "role")
    if role not in Role.__members__.values():
        raise Refused("unsupported", "the role is unknown")
    return Hello(
        minor=version[1],
        agent=text(body, "agent")[:64],
        role=Role(role),
        boot=_hex(body, "boot", _BOOT_BYTES).hex(),
        nonce=_hex(body, "nonce", _NONCE_BYTES),
        known=flag(body, "known"),
    )


def _hex(body: dict[str, Any], name: str, size: int) -> bytes:
    value = text(body, name)
    try:
        decoded = bytes.fromhex(value)
    except ValueError:
        decoded = b""
    if len(value) != 2 * size or len(decoded) != size:
        raise ProtocolViolation(f"{name} is not {2 * size} hex digits")
    return decoded


class Handshake:
    """One peer's handshake. ``first_contact``: the agent has not received the secret yet."""

    def __init__(
        self,
        *,
        secret: bytes,
        epoch: int,
        setup: Mapping[str, Any],
        first_contact: bool,
        nonce: bytes | None = None,
    ) -> None:
        self._secret = secret
        self._epoch = epoch
        self._setup = setup
        self._first_contact = first_contact
        self._nonce = nonce or secrets.token_bytes(_NONCE_BYTES)
        self._hello: Hello | None = None

    def receive(self, frame: Frame) -> bytes | HandshakeResult:
        """Returns the bytes to send next, or the result of the finished handshake."""
        if self._hello is None:
            if frame.kind is not Kind.HELLO:
                raise ProtocolViolation(f"{frame.kind.name} in place of HELLO")
            return self._answer_hello(parse_hello(parse_object(frame.body)))
        if frame.kind is not Kind.READY:
            raise ProtocolViolation(f"{frame.kind.name} in place of READY")
        return self._check_ready(self._hello, parse_object(frame.body))

    def _answer_hello(self, hello: Hello) -> bytes:
        body: dict[str, Any] = {
            "protocol": list(PROTOCOL),
            "epoch": self._epoch,
            "nonce": self._nonce.hex(),
        }
        if hello.known:
            # Also on first contact: the agent may have got the secret and lost the link before
            # READY.
            body["proof"] = worker_proof(self._secret, hello.nonce, self._epoch, hello.role).hex()
        elif not self._first_contact:
            raise Refused("unknown_agent", "the agent of this sandbox holds a secret; this one does not")
        elif hello.role is not Role.CORE:
            raise Refused("unknown_agent", "first contact is the core link's")
        else:
            body["secret"] = self._secret.hex()
            body["setup"] = dict(self._setup)
        self._hello = hello
        return encode(Kind.WELCOME, 0, encode_object(body))

    def _check_ready(self, hello: Hello, body: dict[str, Any]) -> HandshakeResult:
        expected = agent_proof(self._secret, self._nonce, self._epoch, hello.role)
        if not hmac.compare_digest(expected, _hex(body, "proof", len(expected))):
            raise Refused("unauthenticated", "the proof is wrong")
        return HandshakeResult(hello.role, min(hello.minor, PROTOCOL[1]), hello.agent, hello.boot)

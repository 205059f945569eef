"""Ports of a sandbox: who may connect to them from outside, and how. Pure.

A port that is exposed has previews: visitors reach it by a URL. An exposure lasts until its session ends or
the port is unexposed. Each link to it is signed and may end earlier.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sandlot.domain.errors import Busy, InvalidRequest, NotFound
from sandlot.domain.network.variables import PROXY_PORTS

MAX_PORT: Final = 65535
# Connections that one session may have at once, through previews and otherwise.
MAX_CONNECTIONS: Final = 128
MAX_EXPOSED: Final = 32
DEFAULT_LINK_S: Final = 24 * 3600.0
MAX_LINK_S: Final = 30 * 24 * 3600.0
# Stands for any exposure of a port that is public.
PUBLIC: Final = "public"
# The reason in the error if no program accepts connections on the port.
NOTHING_LISTENS: Final = "nothing_listens"


@dataclass(frozen=True, slots=True)
class ExposePort:
    """A request to make a port visible.

    port: the port that a program in the sandbox listens on.
    public: whether everybody may see it who knows its address. Otherwise visitors need a link.
    expires_s: seconds after which the link ends; None for a day. A public link ends with the exposure.
    keep_prefix: whether the program gets the whole path of each request, if the preview has a path of its own
        on the server. Otherwise the preview's own part is removed.
    """

    port: int
    public: bool = False
    expires_s: float | None = None
    keep_prefix: bool = False

    def __post_init__(self) -> None:
        check_port(self.port)
        if self.expires_s is not None and not 0 < self.expires_s <= MAX_LINK_S:
            raise InvalidRequest(f"expires_s must be more than 0 and at most {MAX_LINK_S:.0f} seconds.")
        if self.expires_s is not None and self.public:
            raise InvalidRequest("A public preview has no expiry of its own. Leave out expires_s, or public.")

    @property
    def link_s(self) -> float | None:
        """How long a link to it lasts; None for as long as the port is exposed."""
        return None if self.public else self.expires_s or DEFAULT_LINK_S


@dataclass(frozen=True, slots=True)
class Exposure:
    """A port that visitors can reach.

    port: the port inside the sandbox.
    id: names this exposure. A port that is exposed again after it was unexposed gets another id, so that
        earlier links stay dead.
    public: whether visitors need no link.
    """

    port: int
    id: str
    public: bool = False


@dataclass(frozen=True, slots=True)
class Preview:
    """An exposed port, and the link to it.

    exposure: what is exposed.
    url: where visitors see it; empty if this service serves no previews.
    prefix: the part of the path that belongs to the preview; empty if it has a host of its own.
    expires_at: when the link ends, in seconds since the epoch; None for never.
    """

    exposure: Exposure
    url: str = ""
    prefix: str = ""
    expires_at: float | None = None

    @property
    def port(self) -> int:
        """The port inside the sandbox."""
        return self.exposure.port

    @property
    def public(self) -> bool:
        """Whether visitors need no link."""
        return self.exposure.public

    def __str__(self) -> str:
        return self.url


def check_port(port: int) -> int:
    if not 1 <= port <= MAX_PORT:
        raise InvalidRequest(f"A port is a number from 1 to {MAX_PORT}, not {port}.")
    if port in PROXY_PORTS:
        raise InvalidRequest(f"Port {port} is reserved for Sandlot's proxy. Use another port.")
    return port


def new_exposure_id() -> str:
    return secrets.token_hex(8)


def exposed(exposures: tuple[Exposure, ...], request: ExposePort, new_id: str) -> tuple[Exposure, ...]:
    """The exposures of a session after the request, in the order of their ports.

    ``new_id``: for a port that is not exposed yet.
    """
    known = {exposure.port: exposure for exposure in exposures}
    if request.port not in known and len(known) >= MAX_EXPOSED:
        raise Busy(
            f"A session exposes at most {MAX_EXPOSED} ports. Unexpose one first.",
            details={"reason": "exposed_ports", "at_most": MAX_EXPOSED},
        )
    exposure_id = known[request.port].id if request.port in known else new_id
    known[request.port] = Exposure(request.port, exposure_id, request.public)
    return tuple(known[port] for port in sorted(known))


def unexposed(exposures: tuple[Exposure, ...], port: int) -> tuple[Exposure, ...]:
    """The exposures without this port. It need not be one of them."""
    return tuple(exposure for exposure in exposures if exposure.port != port)


def exposure_of(exposures: Iterable[Exposure], port: int, wanted: str = "") -> Exposure:
    """The exposure through which a visitor comes: the one with this id, or any that is ``PUBLIC``.

    Without ``wanted``, whatever exposure the port has. ``NotFound`` if there is none.
    """
    for exposure in exposures:
        if exposure.port == port and (not wanted or wanted == exposure.id or _is_open(exposure, wanted)):
            return exposure
    raise NotFound(f"Port {port} has no preview. Expose it with session.expose({port}).")


def _is_open(exposure: Exposure, wanted: str) -> bool:
    return wanted == PUBLIC and exposure.public


def check_room(open_connections: int, session_id: str) -> None:
    if open_connections >= MAX_CONNECTIONS:
        raise Busy(
            f"Session {session_id} has {MAX_CONNECTIONS} connections to its ports, which is the most. Close "
            "some.",
            retry_after_s=1.0,
            details={"reason": "port_connections", "at_most": MAX_CONNECTIONS},
        )


def nothing_listens_error(port: int) -> NotFound:
    return NotFound(
        f"Nothing listens on port {port} in the sandbox. Start a server there, on 127.0.0.1 or 0.0.0.0.",
        details={"reason": NOTHING_LISTENS, "port": port},
    )

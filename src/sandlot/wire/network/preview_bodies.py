"""HTTP bodies for exposed ports, and the messages of a connection to a port."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from sandlot.domain.network.ports import ExposePort, Exposure, Preview
from sandlot.wire.http_bodies import STRICT

# The text message with which either side says that it sends no more.
END_MESSAGE: Final = '{"type":"end"}'


@dataclass(frozen=True, slots=True)
class ExposePortBody:
    """How to expose a port.

    public: whether everybody may see it who knows its address. Otherwise visitors need the link.
    expires_s: seconds after which the link ends; null for a day. A public preview has no expiry.
    keep_prefix: whether the program gets the whole path of each request, if the preview has a path of its own
        on the server. Otherwise the preview's own part is removed.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    public: bool = False
    expires_s: float | None = None
    keep_prefix: bool = False

    @classmethod
    def of(cls, request: ExposePort) -> ExposePortBody:
        return cls(request.public, request.expires_s, request.keep_prefix)

    def to_domain(self, port: int) -> ExposePort:
        return ExposePort(port, self.public, self.expires_s, self.keep_prefix)


@dataclass(frozen=True, slots=True)
class PreviewBody:
    """An exposed port, and the link to it.

    port: the port inside the sandbox.
    id: names the exposure. It changes when the port is unexposed and exposed again.
    public: whether visitors need no link.
    url: where visitors see it. A private one is secret. Empty if this server serves no previews.
    prefix: the part of the path that belongs to the preview; empty if it has a host of its own.
    expires_at: when the link ends, in seconds since 1970; null for never.
    """

    port: int
    id: str
    public: bool
    url: str = ""
    prefix: str = ""
    expires_at: float | None = None

    @classmethod
    def of(cls, preview: Preview) -> PreviewBody:
        exposure = preview.exposure
        return cls(
            exposure.port, exposure.id, exposure.public, preview.url, preview.prefix, preview.expires_at
        )

    def to_domain(self) -> Preview:
        return Preview(Exposure(self.port, self.id, self.public), self.url, self.prefix, self.expires_at)


@dataclass(frozen=True, slots=True)
class ExposedPortBody:
    """An exposed port, without a link to it.

    port: the port inside the sandbox.
    id: names the exposure.
    public: whether visitors need no link.
    """

    port: int
    id: str
    public: bool

    @classmethod
    def of(cls, exposure: Exposure) -> ExposedPortBody:
        return cls(exposure.port, exposure.id, exposure.public)

    def to_domain(self) -> Exposure:
        return Exposure(self.port, self.id, self.public)


@dataclass(frozen=True, slots=True)
class ExposedPortListBody:
    """The exposed ports of a session.

    ports: one entry for each.
    """

    ports: list[ExposedPortBody]

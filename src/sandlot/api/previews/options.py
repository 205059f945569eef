"""The options of previews."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from sandlot.domain.network.preview_links import LinkTokens, PreviewDomain


@dataclass(frozen=True, slots=True)
class PreviewOptions:
    # Signs links and reads them.
    tokens: LinkTokens = field(repr=False)
    # The hosts of previews. None: they have paths on the server.
    domain: PreviewDomain | None = None
    # Whether a port can be exposed to everybody. If not, those that are have no visitors.
    public: bool = True
    # Host names under which the server has paths for previews; None for any.
    allowed_hosts: Collection[str] | None = None
    # Of one request's body.
    max_body_bytes: int = 1024**3
    # Of an answer without its body.
    max_head_bytes: int = 64 * 1024
    # Of one message of a program on a WebSocket.
    max_message_bytes: int = 4 * 1024 * 1024
    # Of all messages of programs that are not complete, or that browsers have not taken yet.
    max_held_bytes: int = 64 * 1024 * 1024
    # Requests and WebSockets at once: of one session, and of all. Requests wait for their turn. A session has
    # at most a quarter of all, those that wait included, so that it cannot keep out visitors of others.
    requests_per_session: int = 48
    websockets_per_session: int = 48
    visits: int = 1024
    # Seconds for a request to wait for its turn.
    turn_s: float = 30.0
    # Seconds in which neither side sends anything.
    idle_s: float = 600.0
    # Seconds of one request or WebSocket in all.
    total_s: float = 6 * 3600.0

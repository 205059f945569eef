"""Questions about the history, and their answers page by page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sandlot.domain.callers.principal import Principal, Scope
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.history.events import SERVER_TENANT, Event, EventKind
from sandlot.domain.history.positions import US, Position
from sandlot.domain.ids import is_session_id, is_thread

MAX_EVENTS: Final = 1000
# The longest time that one call waits for an event. To wait longer, a caller asks again.
MAX_WAIT_S: Final = 60.0
# The year 2255, beyond which a time in microseconds does not fit into an event's id.
_MAX_TIME: Final = 9e9


@dataclass(frozen=True, slots=True)
class EventQuery:
    """Which events to return, oldest first.

    session_id: only those of this session, which may have ended.
    thread: only those of this conversation's sessions.
    kinds: only these kinds; empty for all.
    since, until: only those from this time on, and before that one, in seconds since the epoch.
    after: the ``next`` value of the previous page.
    limit: how many events a page has at most.
    wait_s: if there is no event yet, wait for one for up to this many seconds.
    server: the events that belong to no tenant instead of the caller's own. Needs ``fleet:operate``.
    """

    session_id: str | None = None
    thread: str | None = None
    kinds: tuple[EventKind, ...] = ()
    since: float | None = None
    until: float | None = None
    after: str | None = None
    limit: int = 100
    wait_s: float = 0.0
    server: bool = False

    def __post_init__(self) -> None:
        if self.session_id is not None and not is_session_id(self.session_id):
            raise InvalidRequest(f"{self.session_id!r:.80} is not a session's id.")
        if self.thread is not None and not is_thread(self.thread):
            raise InvalidRequest("A thread's id must be 1-200 printable ASCII characters without spaces.")
        if not 0 < self.limit <= MAX_EVENTS:
            raise InvalidRequest(f"limit must be between 1 and {MAX_EVENTS}.")
        if not 0 <= self.wait_s <= MAX_WAIT_S:
            raise InvalidRequest(f"wait_s must be between 0 and {MAX_WAIT_S:g}.")
        for name, at in (("since", self.since), ("until", self.until)):
            if at is not None and not 0 <= at <= _MAX_TIME:
                raise InvalidRequest(f"{name} must be a time in seconds since 1970.")
        self.position  # noqa: B018  raises if the cursor is none

    @property
    def position(self) -> Position:
        return Position.parse(self.after)

    def tenant_for(self, principal: Principal) -> str:
        """Whose events the caller asks for. Raises ``Forbidden`` if they are not the caller's."""
        if self.server:
            principal.require(Scope.FLEET_OPERATE)
            return SERVER_TENANT
        return principal.tenant

    def times_us(self, tag: str) -> tuple[int, int | None]:
        """The events of a worker that can match are after the first time, and before the second."""
        since_us = 0 if self.since is None else int(self.since * US) - 1
        return max(self.position.of(tag), since_us), None if self.until is None else int(self.until * US)

    def is_over(self, now: float) -> bool:
        """Whether no later event can match."""
        return self.until is not None and self.until <= now

    def matches(self, event: Event) -> bool:
        """Whether the event is of the session, thread and kinds asked for."""
        return (
            (self.session_id is None or self.session_id == event.session_id)
            and (self.thread is None or self.thread == event.thread)
            and (not self.kinds or event.kind in self.kinds)
        )


@dataclass(frozen=True, slots=True)
class EventPage:
    """A page of events, oldest first.

    events: the events. A page may have fewer than asked for even if there are more.
    next: what to give as ``after`` for the following page, now or once there are more events.
    more: whether there are more events now.
    missing: the workers of a fleet that did not answer, so that their events are missing here. Asking on with
        ``next`` returns them once the workers answer again.
    """

    events: tuple[Event, ...]
    next: str
    more: bool = False
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HistoryFigures:
    """How a server's history is doing.

    recorded: how many events were recorded since it started.
    dropped: how many were not, because the disk could not keep up.
    used_bytes: the size of the history on disk.
    """

    recorded: int
    dropped: int
    used_bytes: int

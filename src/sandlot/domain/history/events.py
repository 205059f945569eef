"""What the history records: events and their kinds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from sandlot.domain.callers.principal import Principal, Scope
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.text.suggestions import did_you_mean

Detail = str | int | float | bool


class EventKind(StrEnum):
    """What happened.

    session.created: somebody created a session.
    session.claimed: the session got a sandbox: its first one, or a new one in place of an earlier one.
    session.lost: the session lost its sandbox.
    session.hibernated: the session gave up its sandbox and kept its files.
    session.ended: the session was deleted or has expired.
    exec.started: a command started.
    exec.ended: a command ended, or its end could not be seen.
    file.written: a file, or an archive of files, was written through the API.
    file.moved: a file or folder was moved through the API.
    file.removed: a file or folder was removed through the API.
    network.changed: somebody changed what a session's sandbox may connect to.
    network.denied: a connection from a sandbox was denied; equal ones are recorded once a minute.
    port.exposed: a port of a sandbox got a preview, or became public or private.
    port.unexposed: a port has no preview any more.
    key.used: a key was used; recorded at most once an hour for each key.
    request.refused: the server refused requests; those of one minute are counted together.
    history.dropped: events that were not recorded, because the disk could not keep up.
    """

    SESSION_CREATED = "session.created"
    SESSION_CLAIMED = "session.claimed"
    SESSION_LOST = "session.lost"
    SESSION_HIBERNATED = "session.hibernated"
    SESSION_ENDED = "session.ended"
    EXEC_STARTED = "exec.started"
    EXEC_ENDED = "exec.ended"
    FILE_WRITTEN = "file.written"
    FILE_MOVED = "file.moved"
    FILE_REMOVED = "file.removed"
    NETWORK_CHANGED = "network.changed"
    NETWORK_DENIED = "network.denied"
    PORT_EXPOSED = "port.exposed"
    PORT_UNEXPOSED = "port.unexposed"
    KEY_USED = "key.used"
    REQUEST_REFUSED = "request.refused"
    HISTORY_DROPPED = "history.dropped"


# The tenant of events that belong to no tenant, such as requests without a valid key. No credential can
# name it.
SERVER_TENANT: Final = ""
# Details that need more than ``sessions:read``, as the calls that would show them do.
_NEEDS: Final = {
    "command": Scope.EXEC,
    "command_digest": Scope.EXEC,
    "path": Scope.FILES,
    "destination": Scope.FILES,
}


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the history.

    id: names the event. Ids of one worker sort in the order of its events.
    at: when it happened, in seconds since the epoch.
    kind: what happened; see ``EventKind``.
    tenant: whom it belongs to.
    session_id: the session, if the event is about one.
    thread: the session's conversation, if any.
    exec_id: the command run, if the event is about one.
    key_id: the id of the caller's key; empty if nobody called, or the server's own key was used.
    subject: whom the caller's credential was issued to.
    details: more about it; which names there are depends on the kind.
    """

    id: str
    at: float
    kind: str
    tenant: str
    session_id: str | None = None
    thread: str | None = None
    exec_id: str | None = None
    key_id: str = ""
    subject: str = ""
    details: Mapping[str, Detail] = field(default_factory=dict)

    def visible_to(self, principal: Principal) -> Event:
        """The event without the details that the caller's scopes do not allow."""
        hidden = [name for name, scope in _NEEDS.items() if name in self.details and not principal.may(scope)]
        if not hidden:
            return self
        return replace(
            self, details={name: value for name, value in self.details.items() if name not in hidden}
        )


def parse_kind(name: str) -> EventKind:
    try:
        return EventKind(name)
    except ValueError:
        known = [kind.value for kind in EventKind]
        raise InvalidRequest(
            f"Unknown kind of event {name!r:.80}.{did_you_mean(name[:80], known)} Kinds are: "
            f"{', '.join(known)}."
        ) from None

"""What the details of each kind of event say. ``docs/reference/events.md`` is generated from this table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sandlot.domain.history.events import EventKind

_GENERATION: Final = "how many sandboxes the session has had"
_PATH: Final = "the path, cut after 1,024 characters"

DETAILS: Final[Mapping[EventKind, Mapping[str, str]]] = {
    EventKind.SESSION_CREATED: {
        "environment": "the environment's name",
        "network": "the network policy that the session asked for, in words",
    },
    EventKind.SESSION_CLAIMED: {"sandbox_id": "the sandbox's id", "generation": _GENERATION},
    EventKind.SESSION_LOST: {"generation": _GENERATION, "reason": "why the sandbox is gone"},
    EventKind.SESSION_HIBERNATED: {"generation": _GENERATION, "reason": "why the session hibernates"},
    EventKind.SESSION_ENDED: {"reason": "`deleted`, `idle` or `lifetime`"},
    EventKind.EXEC_STARTED: {
        "command": "the command, with secrets masked, cut after 4,096 characters",
        "command_digest": "a keyed digest instead of the command, with `SANDLOT_HISTORY_COMMANDS=hashed`",
        "generation": _GENERATION,
        "shell": "the shell that ran it, if any",
    },
    EventKind.EXEC_ENDED: {
        "verdict": "why it ended, such as `ok` or `timeout`",
        "exit_code": "its exit code",
        "signal": "the signal that ended it, if any",
        "duration_ms": "how long it ran",
        "output_bytes": "how much it wrote",
        "stderr_bytes": "how much of that was on stderr, if any",
        "truncated": "true if output is missing",
        "user_ms": "processor time in its own code",
        "system_ms": "processor time in the kernel",
        "peak_memory_bytes": "the most memory that it used",
        "unseen": "why nobody could see how it ended; then it is the only detail",
    },
    EventKind.FILE_WRITTEN: {
        "path": _PATH,
        "bytes": "how much was written",
        "files": "how many files an archive had",
    },
    EventKind.FILE_MOVED: {"path": _PATH, "destination": "the new path"},
    EventKind.FILE_REMOVED: {"path": _PATH, "files": "how many files were removed"},
    EventKind.NETWORK_CHANGED: {
        "policy": "the new policy, in words",
        "allow": "the hosts that were allowed",
        "for_s": "for how long they are allowed",
        "revoke": "the hosts that are no longer allowed",
        "forward": "the ports that now lead to a host outside",
        "unforward": "the ports that no longer do",
    },
    EventKind.NETWORK_DENIED: {"target": "the host and port", "rule": "the rule that denied it"},
    EventKind.PORT_EXPOSED: {"port": "the port", "public": "whether visitors need no signed link"},
    EventKind.PORT_UNEXPOSED: {"port": "the port"},
    EventKind.KEY_USED: {},
    EventKind.REQUEST_REFUSED: {
        "status": "401, 403 or 429",
        "count": "how many requests",
        "route": "the route of the first one",
        "address": "the client's address, if its key is not known",
    },
    EventKind.HISTORY_DROPPED: {"events": "how many events could not be recorded"},
}

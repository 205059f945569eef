"""Changes of a watched folder as E2B's SDK knows them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from sandlot.domain.files import FileChange, FileChangeType

# The name of a file while it is written. It then takes the place of the one that is meant.
_TEMPORARY: Final = re.compile(r"\.sandlot-[0-9a-f]{16}")
_TYPES: Final = {
    FileChangeType.CREATE: "EVENT_TYPE_CREATE",
    FileChangeType.WRITE: "EVENT_TYPE_WRITE",
    FileChangeType.REMOVE: "EVENT_TYPE_REMOVE",
    FileChangeType.RENAME: "EVENT_TYPE_RENAME",
    FileChangeType.CHMOD: "EVENT_TYPE_CHMOD",
}


class Event(msgspec.Struct, frozen=True):
    """``name``: of the file, relative to the watched folder."""

    name: str
    type: str


class Changes:
    """Turns changes into events, one after the other. ``folder``: the absolute path of what is watched."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._written_in: str | None = None  # the folder of a temporary file that just went away

    def events(self, change: FileChange) -> Sequence[Event]:
        """The events of a change; none for what only happens while a file is written.

        A file that was written here has appeared under its name. Clients wait for it to be written, too.
        """
        parent, _, name = change.path.rpartition("/")
        if _TEMPORARY.fullmatch(name):
            self._written_in = parent if change.type is FileChangeType.RENAME else None
            return ()
        was_written = change.type is FileChangeType.CREATE and self._written_in == parent
        self._written_in = None
        types = (change.type, FileChangeType.WRITE) if was_written else (change.type,)
        relative = change.path.removeprefix(self._folder).lstrip("/")
        return [Event(relative, _TYPES[each]) for each in types]

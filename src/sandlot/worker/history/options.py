"""The options of a worker's history. ``config`` has the settings for users, with their reasons."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from sandlot.domain.history.recorder import Commands


@dataclass(frozen=True, slots=True)
class HistoryOptions:
    enabled: bool = True
    # Events are deleted when they are older than this, in seconds, or when the file exceeds this size.
    max_age_s: float = 30 * 24 * 3600.0
    max_bytes: int = 256 * 1024 * 1024
    commands: Commands = "full"
    # Where events are exported: a file's path, syslog://HOST[:PORT] or syslog:///SOCKET. A file is renamed
    # when it has so many bytes, and so many renamed ones are kept.
    export: str | None = None
    export_max_bytes: int = 64 * 1024 * 1024
    export_files: int = 5
    # Masked wherever they stand, beside the variables of sessions and commands.
    secrets: Collection[str] = field(default=(), repr=False)

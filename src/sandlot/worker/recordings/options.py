"""The options of a worker's recordings. ``config`` has the settings for users, with their reasons."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from sandlot.domain.history.recorder import Commands

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class RecordingOptions:
    enabled: bool = True
    # A session's recording stops at this size. If all together are larger than the other, the oldest goes.
    max_session_bytes: int = 16 * MIB
    max_bytes: int = 1024 * MIB
    # A recording is deleted so many seconds after its session's end.
    max_age_s: float = 30 * 24 * 3600.0
    # ``hashed``: the history must not show commands, so recordings do not either.
    commands: Commands = "full"
    # Masked wherever they stand, beside the variables of sessions and commands.
    secrets: Collection[str] = field(default=(), repr=False)

"""Settings for the history: whether it is kept, for how long, and what it says."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sandlot.config.ceiling_settings import CeilingSettings

MIB = 1024 * 1024


class HistorySettings(CeilingSettings):
    history: bool = Field(
        True,
        description=(
            "Whether the worker records what happens: sessions, commands, written files, use of keys. "
            "The record is in `history.sqlite3` in SANDLOT_DATA_DIR."
        ),
    )
    history_max_age_s: float = Field(
        30 * 24 * 3600.0,
        gt=0,
        le=10 * 365 * 24 * 3600,
        description="Seconds after which an event is deleted from the history.",
    )
    history_max_bytes: int = Field(
        256 * MIB,
        ge=MIB,
        description=(
            "Maximum size of the history on disk. Beyond it, the oldest events are deleted. A command takes "
            "about 900 bytes."
        ),
    )
    history_commands: Literal["full", "hashed"] = Field(
        "full",
        description=(
            "`full` records commands, with the values of variables masked. `hashed` records a keyed digest "
            "of each command, so that equal ones can be recognised and none can be read."
        ),
    )

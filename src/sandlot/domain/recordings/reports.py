"""What a server reports about its recordings, and about one that is missing."""

from __future__ import annotations

from dataclasses import dataclass

from sandlot.domain.errors import NotFound


@dataclass(frozen=True, slots=True)
class RecordingFigures:
    """How the recordings of a server are doing.

    sessions: how many sessions have a recording.
    used_bytes: how much disk the recordings take.
    """

    sessions: int
    used_bytes: int


def no_recording_error(session_id: str, *, recorded: bool) -> NotFound:
    """The error for a session without a recording. ``recorded``: whether it asked for one."""
    why = (
        "it was removed to make room for others, or because it was too old"
        if recorded
        else "the session was created without record=True, or its recording has been removed"
    )
    return NotFound(f"There is no recording of session {session_id[:64]}: {why}.")

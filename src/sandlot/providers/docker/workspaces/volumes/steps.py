"""Named steps of the volume store at which a test may kill the process.

The next ``open()`` must find the state before the call or after it. Outside tests, ``reached`` does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class VolumeStep(StrEnum):
    PAUSE_NOTED = "pause noted"
    PAUSED = "paused"
    COPIED = "copied"
    RESUMED = "resumed"
    SNAPSHOT_PUBLISHED = "snapshot published"
    FILLING_NOTED = "filling noted"
    VOLUME_MADE = "volume made"
    VOLUME_FILLED = "volume filled"
    CLONE_PUBLISHED = "clone published"
    VOLUME_REMOVED = "volume removed"


hook: Callable[[VolumeStep], None] | None = None


def reached(step: VolumeStep) -> None:
    if hook is not None:
        hook(step)

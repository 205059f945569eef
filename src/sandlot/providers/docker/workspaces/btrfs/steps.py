"""Named steps of the btrfs store at which a test may kill the process.

The next ``open()`` must find the state before the call or after it. Outside tests, ``reached`` does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class StoreStep(StrEnum):
    SEED_FILLED = "seed filled"
    SEED_MADE = "seed made"
    FIRST_FILES_MADE = "first files made"
    SANDBOX_STAGED = "sandbox staged"
    SANDBOX_PUBLISHED = "sandbox published"
    MOUNT_POINT_MADE = "mount point made"
    MOUNTED = "mounted"
    ATTACH_NOTED = "attach noted"
    OLD_FILES_AWAY = "old files away"
    NEW_FILES_IN_PLACE = "new files in place"
    ATTACHED = "attached"
    CLONE_MADE = "clone made"
    CLONE_PUBLISHED = "clone published"
    SPARE_COPIED = "spare copied"
    SPARE_MADE = "spare made"
    SNAPSHOT_MADE = "snapshot made"
    IMPORT_FILLED = "import filled"
    IMPORT_PUBLISHED = "import published"
    VOLUME_MADE = "volume made"
    VOLUME_PUBLISHED = "volume published"
    VOLUME_NOTED = "volume noted"
    VOLUME_ATTACHED = "volume attached"
    VOLUME_COPIED = "volume copied"
    VOLUME_BACK = "volume back"
    UNMOUNTED = "unmounted"
    FILES_KEPT = "files kept"
    IN_TRASH = "in trash"
    DELETED = "deleted"


hook: Callable[[StoreStep], None] | None = None


def reached(step: StoreStep) -> None:
    if hook is not None:
        hook(step)

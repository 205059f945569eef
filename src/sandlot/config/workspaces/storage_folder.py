"""Which folder the workers of this machine keep workspaces in, if it is on btrfs.

Standard library only, because the command line looks there too.
"""

from __future__ import annotations

import os
from pathlib import Path

# Where `sandlot storage init` mounts the btrfs of all workers on this machine.
DEFAULT_STORAGE_DIR = Path("/var/lib/sandlot/storage")


def storage_dir() -> Path:
    """The folder that workers of this environment use."""
    named = os.environ.get("SANDLOT_STORAGE_DIR")
    return (Path(named).expanduser() if named else DEFAULT_STORAGE_DIR).absolute()

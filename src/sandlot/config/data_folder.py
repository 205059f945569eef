"""Which folder a server of this user keeps its data in.

Standard library only, because the command line looks there for a running server.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

# The part of a data folder that has the records of programs in local mode.
LOCAL_DIR: Final = "local"


def default_data_dir() -> Path:
    """The default data folder.

    Both paths are short, because sandboxes' sockets lie below it and a socket's path has at most
    107 bytes.
    """
    return Path("/var/lib/sandlot") if os.geteuid() == 0 else Path.home() / ".local/share/sandlot"


def provider_dir(data_dir: Path) -> Path:
    """The part of a worker's data folder that has the sandboxes' sockets."""
    return data_dir / "docker"


def data_dir() -> Path:
    """The data folder that ``sandlot serve`` uses in this environment if it has no ``--data-dir``."""
    named = os.environ.get("SANDLOT_DATA_DIR")
    return (Path(named).expanduser() if named else default_data_dir()).absolute()

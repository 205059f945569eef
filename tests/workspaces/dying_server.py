"""A server that dies as if killed with -9 when it reaches a step of the worker or of its store for the Nth time."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from sandlot.config.reading import server_settings
from sandlot.providers.docker.workspaces.btrfs import steps
from sandlot.wiring import serve
from sandlot.worker import failpoints


def die_at(wanted: str, count: int, armed: Path | None = None) -> None:
    """``armed``: a file without which steps do not count."""
    left = count

    def die(step: str) -> None:
        nonlocal left
        if step == wanted and (armed is None or armed.exists()):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    failpoints.hook = die
    steps.hook = die


def main() -> None:
    die_at(sys.argv[1], int(sys.argv[2]))
    asyncio.run(serve(server_settings()))


if __name__ == "__main__":
    main()

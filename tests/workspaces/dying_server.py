"""A server that dies as if killed with -9 when it reaches a step of the worker or of its store for the Nth time."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from sandlot.config.reading import server_settings
from sandlot.providers.docker.workspaces.btrfs import steps
from sandlot.wiring import serve
from sandlot.worker import failpoints


def main() -> None:
    wanted, left = sys.argv[1], int(sys.argv[2])

    def die(step: str) -> None:
        nonlocal left
        if step == wanted:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    failpoints.hook = die
    steps.hook = die
    asyncio.run(serve(server_settings()))


if __name__ == "__main__":
    main()

"""A server that dies as if killed with -9 when it reaches a named step: `python dying_server.py STEP [COUNT]`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from sandlot.config.reading import server_settings
from sandlot.wiring import serve
from sandlot.worker import failpoints


def main() -> None:
    wanted = failpoints.Step(sys.argv[1])
    left = int(sys.argv[2]) if len(sys.argv) > 2 else 1

    def die(step: failpoints.Step) -> None:
        nonlocal left
        if step is wanted:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    failpoints.hook = die
    asyncio.run(serve(server_settings()))


if __name__ == "__main__":
    main()

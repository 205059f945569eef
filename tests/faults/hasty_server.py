"""A server that waits only a moment for the engine to make a container: `python hasty_server.py SECONDS`."""

from __future__ import annotations

import asyncio
import sys

from sandlot.config.reading import server_settings
from sandlot.providers.docker import engine
from sandlot.wiring import serve


def main() -> None:
    engine.CREATE_SECONDS = float(sys.argv[1])
    asyncio.run(serve(server_settings()))


if __name__ == "__main__":
    main()

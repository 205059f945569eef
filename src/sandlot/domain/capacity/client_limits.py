"""How many connections and streams a server holds open for its clients, unless its settings say otherwise."""

from __future__ import annotations

from typing import Final

MAX_CONNECTIONS: Final = 2000
MAX_CONNECTIONS_PER_ADDRESS: Final = 1000
MAX_STREAMS: Final = 1000
MAX_STREAMS_PER_KEY: Final = 500
MAX_STREAMS_PER_ADDRESS: Final = 500

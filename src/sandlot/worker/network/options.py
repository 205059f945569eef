"""The options of sandboxes' networks, and of the proxy."""

from __future__ import annotations

from dataclasses import dataclass, field

from sandlot.domain.network.addresses import Networks
from sandlot.domain.network.policy import DEFAULT_CEILING, EgressPolicy


@dataclass(frozen=True, slots=True)
class ProxyOptions:
    # Addresses that may be reached although they are not public. The operator's alone: no policy of a
    # session or an environment adds to them.
    allowed: Networks = ()
    # Of a request or an answer without its body.
    max_head_bytes: int = 64 * 1024
    # Seconds from the first byte of a request to the end of its head; also for the first bytes in a tunnel.
    head_s: float = 15.0
    # Seconds from the end of an answer to the next request on the same connection.
    keep_alive_s: float = 60.0
    # Seconds in which neither side sends anything.
    idle_s: float = 300.0
    # Seconds of one connection in all.
    total_s: float = 6 * 3600.0
    # Seconds to resolve a name and to connect to one of its addresses.
    connect_s: float = 10.0
    # Seconds to hand over the last bytes to a program that reads slowly.
    last_bytes_s: float = 5.0
    # Names that one session resolves at once, and that all do. A slow name holds a thread.
    resolving: int = 4
    resolving_in_all: int = 32


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    # The most that a session may ask for, beyond what its environment allows. None: no ceiling.
    ceiling: EgressPolicy | None = DEFAULT_CEILING
    proxy: ProxyOptions = field(default_factory=ProxyOptions)

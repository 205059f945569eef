"""Gives the memory that a burst needed back to the system.

glibc keeps what Python frees, in pieces between objects that live on, and gives back only the end of
its heap. A coordinator that has passed six results of 16 MiB could stay 140 MiB larger for ever,
which is much of the 512 MiB that its container has. No setting of the allocator helps with pieces
this small, and asking it to trim does.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable
from pathlib import Path

LOOK_EVERY_S = 10.0
# Less growth than this is not worth a trim. One that finds nothing to give back takes 0.2 to 4 ms.
WORTH_BYTES = 32 * 1024 * 1024

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


async def return_freed_memory(every_s: float = LOOK_EVERY_S) -> None:
    """Trim the heap while the process is larger than it once was. Runs until it is cancelled."""
    trim = _trimmer()
    if trim is None:  # not glibc
        return
    smallest = resident_bytes()
    while True:
        await asyncio.sleep(every_s)
        # Not only when it has just grown: what a burst needed may be freed long after its peak.
        if resident_bytes() > smallest + WORTH_BYTES:
            # In a thread: the call lets go of the interpreter lock, so others go on meanwhile.
            await asyncio.to_thread(trim, 0)
        smallest = min(smallest, resident_bytes())


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


def _trimmer() -> Callable[[int], int] | None:
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim

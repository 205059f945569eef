"""The resources of this process's machine. The engine always runs on the same machine."""

from __future__ import annotations

import os
from pathlib import Path

from sandlot.domain.capacity.machine import Machine

_KERNEL = Path("/proc/sys/kernel")
# Every kernel allows at least this many processes, unless an operator has lowered the limit.
MIN_PIDS = 32_768


def this_machine() -> Machine:
    """Return what the engine's sandboxes share, regardless of limits on this process."""
    try:
        pids = min(int((_KERNEL / name).read_text("ascii")) for name in ("pid_max", "threads-max"))
    except OSError:  # hidden from this process, as by systemd's ProcSubset
        pids = MIN_PIDS
    return Machine(
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        cpus=os.cpu_count() or 1,
        pids=pids,
    )

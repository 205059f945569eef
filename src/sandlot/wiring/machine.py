"""What the machine has that this process runs on; the engine is always on the same one."""

from __future__ import annotations

import os
from pathlib import Path

from sandlot.domain.machine import Machine

_KERNEL = Path("/proc/sys/kernel")
# What every kernel has, unless somebody has lowered it.
LEAST_PIDS = 32_768


def this_machine() -> Machine:
    """As the engine's sandboxes share it, whatever this process itself is confined to."""
    try:
        pids = min(int((_KERNEL / name).read_text("ascii")) for name in ("pid_max", "threads-max"))
    except OSError:  # hidden from us, as by systemd's ProcSubset
        pids = LEAST_PIDS
    return Machine(
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        cpus=os.cpu_count() or 1,
        pids=pids,
    )

"""What the machine has that this process runs on; the engine is always on the same one."""

from __future__ import annotations

import os
from pathlib import Path

from sandlot.domain.limits import Machine

_KERNEL = Path("/proc/sys/kernel")


def this_machine(overcommit: float) -> Machine:
    return Machine(
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        cpus=os.cpu_count() or 1,
        pids=min(int((_KERNEL / name).read_text()) for name in ("pid_max", "threads-max")),
        overcommit=overcommit,
    )

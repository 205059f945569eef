"""What a session's sandbox uses of the machine now."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SandboxUsage:
    """What a session's sandbox uses now, measured from outside of it, and what it may use.

    A session without a sandbox, such as one that hibernates, uses its disk only.

    measured_at: when, in seconds since the epoch.
    cpu_s: the processor time that this sandbox has used so far, in seconds. Two measurements give the share.
    cpus: the processor cores that it may use.
    memory_bytes: memory, without what the kernel can free at once.
    memory_limit_bytes: the memory that it may use.
    processes: processes and threads, with the agent's own.
    processes_limit: the processes and threads that it may have.
    disk_bytes: what its files use; ``None`` if the store cannot tell.
    disk_limit_bytes: what its files may use; ``None`` if nothing limits them.
    """

    measured_at: float
    cpu_s: float
    cpus: float
    memory_bytes: int
    memory_limit_bytes: int
    processes: int
    processes_limit: int
    disk_bytes: int | None = None
    disk_limit_bytes: int | None = None

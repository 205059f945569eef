"""What a worker is told about itself. Settings and their reasons for users are in ``config``; times in
seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.execution import ExecRequest
from sandlot.domain.machine import Machine, Overcommit

# Seconds after a command's timeout from which one question that its sandbox leaves unanswered ends the wait
# for its end. A sandbox that is silent when the timeout comes has left one unanswered 9 s later
# (``pulse.py``), so the caller knows within ten. Only for commands that are run without a shell and waited
# for: others are told when the sandbox counts as unresponsive.
OVERDUE_S = 8.0


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    worker_id: str = "worker"
    # Sandboxes being made at once, over all environments. More only makes each of them slower.
    create_concurrency: int = 4
    # How long a create waits for a sandbox before it is told to come back later, and how many may wait.
    queue_timeout_s: float = 30.0
    max_waiting: int = 1000
    max_sessions: int = 1000
    # Where the engine keeps images and sandboxes, if that is known.
    engine_folder: Path | None = None
    # Free bytes, there and on the disk with the worker's records, below which no new sessions are taken.
    # None: as ``domain/disk.py`` says.
    min_free_bytes: int | None = 0
    # What the sessions' sandboxes share, and how many times that may be given to them as their limits. None:
    # only sessions are counted.
    machine: Machine | None = None
    overcommit: Overcommit = field(default_factory=Overcommit)
    default_exec_timeout_s: float = 300.0
    max_exec_timeout_s: float = 3600.0
    # How long after its timeout an exec is waited for, and any other answer of a sandbox.
    exec_grace_s: float = 20.0
    # Execs of one session at once.
    max_execs: int = 32
    allow_never: bool = False
    # An unknown sandbox is left alone for this long: another process may be about to record it.
    orphan_grace_s: float = 30.0
    # How long it can be told why a session ended: to who asks for it, and to its thread.
    remember_ended_s: float = 30 * 24 * 3600.0
    # How long a stopping worker waits for calls under way. Their commands go on without it.
    drain_timeout_s: float = 30.0

    def bounded(self, request: ExecRequest) -> ExecRequest:
        """Every exec ends by itself at some time: a session whose time is over waits for it no longer than
        that.
        """
        ceiling = self.max_exec_timeout_s
        if request.timeout_s is None:
            # Somebody sits at a terminal, or has started what is meant to go on, and does not know of a
            # timeout that they did not ask for.
            open_ended = request.pty is not None or request.output_limit is None
            usual = ceiling if open_ended else self.default_exec_timeout_s
            return replace(request, timeout_s=min(usual, ceiling))
        if request.timeout_s > ceiling:
            raise InvalidRequest(f"timeout_s is at most {ceiling:g} here, not {request.timeout_s:g}")
        return request

    def ends_within(self, request: ExecRequest) -> float | None:
        """Seconds in which the end of a bounded exec is known; None for one that waits for a shell's turn,
        which takes as long as what runs there before it.
        """
        if request.shell is not None or request.timeout_s is None:
            return None
        return request.timeout_s + self.exec_grace_s

    def overdue_after(self, request: ExecRequest) -> float | None:
        """Seconds from which the end of a bounded exec is waited for only as long as its sandbox answers
        questions. None: as above.
        """
        ends_s = self.ends_within(request)
        return None if ends_s is None else ends_s - self.exec_grace_s + OVERDUE_S

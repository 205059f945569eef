"""The options of a worker. ``config`` has the settings for users, with their reasons. Times are in
seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from sandlot.domain.capacity.machine import Machine, Overcommit
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.execution import ExecRequest
from sandlot.worker.artifacts.options import ArtifactOptions
from sandlot.worker.history.options import HistoryOptions
from sandlot.worker.network.options import NetworkOptions
from sandlot.worker.recordings.options import RecordingOptions
from sandlot.worker.volumes.options import VolumeOptions
from sandlot.worker.workspaces.options import WorkspaceOptions

# Seconds after a command's timeout. From then on, a single unanswered probe of its sandbox ends the
# wait for the command. A sandbox that is silent at the timeout has missed a probe 9 s later
# (``sessions/responsiveness.py``), so the caller knows within 10 s. This applies only to commands
# that run without a shell and whose caller waits. Other callers learn it when the sandbox counts as
# unresponsive.
OVERDUE_S = 8.0


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    worker_id: str = "worker"
    # How many sandboxes are made at once, over all environments. More only makes each of them
    # slower.
    create_concurrency: int = 4
    # How long a create waits for a sandbox before it fails with a retry hint, and how many may
    # wait.
    queue_timeout_s: float = 30.0
    max_waiting: int = 1000
    max_sessions: int = 1000
    # Where the engine keeps images and sandboxes, if known.
    engine_folder: Path | None = None
    # Where workspaces are, if that is a file system of their own.
    storage_folder: Path | None = None
    # The worker takes no new sessions if one of these, or its own data disk, has fewer free bytes.
    # None: the default of ``domain/capacity/disk.py``.
    min_free_bytes: int | None = 0
    # The machine that the sandboxes share, and how many times its resources may be given away as
    # limits. None: only sessions are counted.
    machine: Machine | None = None
    overcommit: Overcommit = field(default_factory=Overcommit)
    default_exec_timeout_s: float = 300.0
    max_exec_timeout_s: float = 3600.0
    # How long to wait for an exec after its timeout, and for any other answer of a sandbox.
    exec_grace_s: float = 20.0
    # How many execs one session may run at once.
    max_execs: int = 32
    allow_never: bool = False
    # An unknown sandbox is left alone for this long: another process may be about to record it.
    orphan_grace_s: float = 30.0
    # How long the worker remembers why a session ended, for calls on that session and for its
    # thread.
    remember_ended_s: float = 30 * 24 * 3600.0
    # How long a stopping worker waits for calls in progress. Their commands go on without it.
    drain_timeout_s: float = 30.0
    history: HistoryOptions = field(default_factory=HistoryOptions)
    recordings: RecordingOptions = field(default_factory=RecordingOptions)
    network: NetworkOptions = field(default_factory=NetworkOptions)
    workspaces: WorkspaceOptions = field(default_factory=WorkspaceOptions)
    artifacts: ArtifactOptions = field(default_factory=ArtifactOptions)
    volumes: VolumeOptions = field(default_factory=VolumeOptions)

    def with_bounded_timeout(self, request: ExecRequest) -> ExecRequest:
        """The request with a timeout that this worker allows. Every exec has a timeout, so an
        expired session never waits longer than that for its commands.
        """
        ceiling = self.max_exec_timeout_s
        if request.timeout_s is None:
            # A user at a terminal, or one who starts a long-running command, does not expect a
            # timeout that they did not ask for.
            open_ended = request.pty is not None or request.output_limit is None
            usual = ceiling if open_ended else self.default_exec_timeout_s
            return replace(request, timeout_s=min(usual, ceiling))
        if request.timeout_s > ceiling:
            raise InvalidRequest(
                f"timeout_s must be at most {ceiling:g} on this server, not {request.timeout_s:g}. The "
                "operator can raise SANDLOT_MAX_EXEC_TIMEOUT_S."
            )
        return request

    def ends_within_s(self, request: ExecRequest) -> float | None:
        """Seconds within which an exec with a timeout must end. None for an exec in a shell: it
        first waits for the execs before it, however long they take.
        """
        if request.shell is not None or request.timeout_s is None:
            return None
        return request.timeout_s + self.exec_grace_s

    def overdue_after_s(self, request: ExecRequest) -> float | None:
        """Seconds after which the wait for an exec goes on only while its sandbox answers probes.
        None for an exec in a shell, as above.
        """
        ends_s = self.ends_within_s(request)
        return None if ends_s is None else ends_s - self.exec_grace_s + OVERDUE_S

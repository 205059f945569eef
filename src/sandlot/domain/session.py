"""A session: what a client holds, and what a client may ask for. ``session_states`` has the rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from sandlot.domain.artifacts.patterns import check_patterns
from sandlot.domain.callers.principal import DEFAULT_TENANT
from sandlot.domain.capacity.limits import LimitChange, Limits
from sandlot.domain.errors import (
    InvalidRequest,
)
from sandlot.domain.ids import is_name, is_thread
from sandlot.domain.network.policy import EgressPolicy
from sandlot.domain.network.ports import Exposure
from sandlot.domain.text.variables import check_env, check_strings
from sandlot.domain.volumes.volume import SessionVolume, VolumeUse, check_uses
from sandlot.domain.workspaces.workspace import Workspace, check_snapshot_id

DEFAULT_ENVIRONMENT = "base"
# The reason in a worker's refusal of a create that the fleet must place anew.
ENDED_MEANWHILE = "ended_meanwhile"
DEFAULT_IDLE_TIMEOUT_S = 30 * 60.0
DEFAULT_LIFETIME_S = 60 * 60.0
# How long a hibernated session is kept without use.
DEFAULT_HIBERNATION_S = 30 * 24 * 3600.0
# The longest timeout, in seconds, that a request may ask for, apart from "never": a year.
MAX_TIMEOUT_S = 366 * 24 * 3600.0
MAX_METADATA_BYTES = 16 * 1024
MAX_METADATA_ENTRIES = 64
MAX_ENV_BYTES = 128 * 1024
MAX_IDEMPOTENCY_KEY = 200
LOST_WITH_A_SANDBOX = (
    "running commands",
    "shells",
    "code contexts and their state",
    "files in /tmp",
    "results of earlier execs",
)
KEPT_VARIABLES = "environment variables"
KEPT_FILES = "files in /workspace"
KEPT_WITHOUT_A_SANDBOX = (
    KEPT_FILES,
    "the session's id and thread",
    "metadata",
    KEPT_VARIABLES,
    "limits",
    "the network policy and its grants",
)
# Variables are secrets: a worker shares them with no one, so they are lost together with the
# worker.
LOST_WITH_A_WORKER = (
    *LOST_WITH_A_SANDBOX,
    KEPT_FILES,
    "environment variables that the session was created with",
    "network grants and forwards",
    "exposed ports",
)
KEPT_WITHOUT_A_WORKER = ("the session's id and thread", "metadata", "limits", "the network policy")


class SessionState(StrEnum):
    """Where a session is in its life.

    active: it has its sandbox.
    unresponsive: it has its sandbox, which does not answer now; it becomes active again by itself.
    lost: its sandbox is gone; ``recreate`` gives it a new one.
    hibernated: it has its files and no sandbox; its next use gives it one.
    ended: it was deleted or has expired. This is final.
    """

    # UNRESPONSIVE is on record nowhere: an active session is shown so while its sandbox does not answer.

    ACTIVE = "active"
    UNRESPONSIVE = "unresponsive"
    LOST = "lost"
    HIBERNATED = "hibernated"
    ENDED = "ended"


class OnIdle(StrEnum):
    """What becomes of a session at its idle timeout, or at the end of its lifetime.

    hibernate: its files stay, and its next use gives it a new sandbox with them.
    end: it ends, and its files go with it.
    """

    HIBERNATE = "hibernate"
    END = "end"


class EndReason(StrEnum):
    """Why a session ended.

    deleted: somebody deleted it.
    idle: it was not used for its idle timeout or, hibernated, for longer than the server keeps it.
    lifetime: its lifetime was over.
    """

    DELETED = "deleted"
    IDLE = "idle"
    LIFETIME = "lifetime"


class Never:
    """A timeout that never comes. It has its own type because None means "as configured"."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NEVER"


NEVER = Never()
Timeout = float | Never
IfDifferent = Literal["error", "keep"]


@dataclass(frozen=True, slots=True)
class LossReport:
    """The loss report: what became of a session's sandbox that is gone.

    generation: which of the session's sandboxes it was.
    at: when, in seconds since the epoch.
    reason: why, in words.
    lost: what is gone with it.
    kept: what the session still has.
    """

    generation: int
    at: float
    reason: str
    lost: tuple[str, ...]
    kept: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Predecessor:
    """The session that a thread had before, and how it ended.

    id: its id.
    reason: why it ended.
    ended_at: when, in seconds since the epoch.
    """

    id: str
    reason: EndReason
    ended_at: float


@dataclass(frozen=True, slots=True)
class Session:
    """What the server knows of a session. Times are seconds since the epoch.

    id: the session's id.
    environment: the name of the environment that its sandbox was made from.
    created_at: when it was created.
    last_active_at: when it was last used.
    tenant: whom it belongs to.
    created_by: the id of the key that it was created with; empty for the server's own key.
    thread: the conversation that it belongs to, if any.
    state: where it is in its life.
    generation: 1 for the first sandbox; one more each time the session gets a new one.
    sandbox_id: the id of its sandbox, while it has one.
    idle_timeout_s: seconds without use after which it ends or hibernates; ``None``: never.
    lifetime_s: seconds from its creation, or from the last time that it woke from hibernation, after
        which it ends or hibernates; ``None``: never.
    limits: what its sandbox may use.
    metadata: the caller's own names and values.
    loss: the loss report, if it lost a sandbox.
    predecessor: the session that its thread had before, if any.
    end_reason: why it ended, if it has.
    ended_at: when it ended.
    record: whether what its commands write is recorded.
    network: the network policy that it asked for; ``None``: its environment's.
    exposed: the ports that have previews. Clients list them with ``session.previews()``.
    workspace: its files; ``None`` from an older server, and once it has ended.
    on_idle: whether it ends or hibernates at its idle timeout or the end of its lifetime.
    hibernation_s: seconds without use after which it ends while it hibernates.
    woken_at: when it last got a sandbox after hibernation.
    artifacts: the files that are kept as artifacts when it ends or hibernates, as paths or patterns.
    volumes: the volumes that it has, at ``/volumes/<name>``, and what it may do with them.
    """

    id: str
    environment: str
    created_at: float
    last_active_at: float
    tenant: str = DEFAULT_TENANT
    thread: str | None = None
    state: SessionState = SessionState.ACTIVE
    generation: int = 1
    sandbox_id: str | None = None
    idle_timeout_s: float | None = DEFAULT_IDLE_TIMEOUT_S
    lifetime_s: float | None = DEFAULT_LIFETIME_S
    limits: Limits = field(default_factory=Limits)
    metadata: Mapping[str, str] = field(default_factory=dict)
    loss: LossReport | None = None
    # Set so that a client which continues a conversation does not mistake this sandbox for the
    # earlier one.
    predecessor: Predecessor | None = None
    end_reason: EndReason | None = None
    ended_at: float | None = None
    created_by: str = ""
    record: bool = False
    network: EgressPolicy | None = None
    exposed: tuple[Exposure, ...] = ()
    workspace: Workspace | None = None
    on_idle: OnIdle = OnIdle.END
    hibernation_s: float = DEFAULT_HIBERNATION_S
    woken_at: float | None = None
    artifacts: tuple[str, ...] = ()
    volumes: tuple[SessionVolume, ...] = ()

    @property
    def lifetime_from(self) -> float:
        """When its lifetime began."""
        return self.created_at if self.woken_at is None else self.woken_at

    @property
    def expires_at(self) -> float | None:
        """When the session ends or hibernates if nobody uses it until then; ``None``: never."""
        if self.keeps_files_unused:
            return self.last_active_at + self.hibernation_s
        ends = []
        if self.idle_timeout_s is not None:
            ends.append(self.last_active_at + self.idle_timeout_s)
        if self.lifetime_s is not None:
            ends.append(self.lifetime_from + self.lifetime_s)
        return min(ends, default=None)

    @property
    def keeps_files_unused(self) -> bool:
        """Whether its files wait for its next use, because it hibernates or would if it had a sandbox."""
        if self.state is SessionState.LOST:
            return self.on_idle is OnIdle.HIBERNATE and self.workspace is not None
        return self.state is SessionState.HIBERNATED


@dataclass(frozen=True, slots=True)
class CreateSession:
    """A request for a session.

    ``thread``: if this conversation already has a live session, the service returns that one.
    ``env``: variables for every command. ``limits``: changes to the environment's limits.
    Timeouts: None means the environment's own; NEVER works only if the settings allow it.
    ``recreate_lost``: if the thread's sandbox was lost, replace it at once and report the loss in
    the session. Otherwise the service returns the lost session itself.
    ``if_different``: what to do if the thread's session has another environment, variables or
    limits than this request: raise ``ThreadDiffers`` ("error"), or use the session as it is
    ("keep").
    ``record``: record what commands write. An environment may record all its sessions.
    ``network``: what the sandbox may connect to, in place of what the environment allows.
    ``snapshot``: the snapshot whose files a new session begins with.
    ``artifacts``: files in ``/workspace`` that are kept when the session ends or hibernates, beside those
    that the environment names.
    ``on_idle``: whether the session ends or hibernates when it is idle; None means as the server is set up.
    ``volumes``: the volumes that the session gets, and whether it writes to them.
    ``provider``: what makes the sandbox, if that matters; the environment must be one of its.
    """

    environment: str | None = None
    thread: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    limits: LimitChange = field(default_factory=LimitChange)
    idle_timeout_s: Timeout | None = None
    lifetime_s: Timeout | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    idempotency_key: str | None = None
    recreate_lost: bool = False
    record: bool = False
    network: EgressPolicy | None = None
    snapshot: str | None = None
    on_idle: OnIdle | None = None
    artifacts: tuple[str, ...] = ()
    volumes: tuple[VolumeUse, ...] = ()
    provider: str | None = None
    # Not part of the session's options: the same idempotency key may come with either value.
    if_different: IfDifferent = field(default="error", compare=False)

    def __post_init__(self) -> None:
        if self.environment is not None and not is_name(self.environment):
            lower = self.environment.lower()
            hint = f" Did you mean {lower!r:.80}?" if is_name(lower) else ""
            raise InvalidRequest(f"{self.environment!r:.80} is not a valid environment name.{hint}")
        if self.thread is not None and not is_thread(self.thread):
            raise InvalidRequest("A thread's id must be 1-200 printable ASCII characters without spaces.")
        if self.idempotency_key is not None and not 0 < _bytes(self.idempotency_key) <= MAX_IDEMPOTENCY_KEY:
            raise InvalidRequest(f"An idempotency key must have 1 to {MAX_IDEMPOTENCY_KEY} bytes.")
        if self.snapshot is not None:
            check_snapshot_id(self.snapshot)
        check_patterns(self.artifacts)
        check_uses(self.volumes)
        check_env(self.env)
        if _size(self.env) > MAX_ENV_BYTES:
            raise InvalidRequest(f"The environment variables exceed {MAX_ENV_BYTES} bytes.")
        if self.if_different not in ("error", "keep"):
            raise InvalidRequest(f"if_different must be 'error' or 'keep', not {self.if_different!r:.80}.")
        check_timeout("idle_timeout_s", self.idle_timeout_s)
        check_timeout("lifetime_s", self.lifetime_s)
        check_metadata(self.metadata)


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a fleet adds to a create that it sends to a worker.

    ``reservation``: the room reserved for the session; recording the session returns it.
    ``predecessor``: the thread's last session, perhaps on another worker.
    ``lost``: a session whose worker is gone; it gets a new sandbox here and keeps its id.
    ``opens``: whether the worker may open a new session. It may not if the fleet sends the create to the
    session that it knows here: nothing is reserved then, and no limit was checked.
    """

    reservation: str | None = None
    predecessor: Predecessor | None = None
    lost: Session | None = None
    opens: bool = True


@dataclass(frozen=True, slots=True)
class SessionChange:
    """Changes to a session; None leaves a value as it is.

    ``lifetime_s`` counts from the session's creation, or from when it last woke from hibernation, and may
    extend or shorten its life.
    """

    idle_timeout_s: Timeout | None = None
    lifetime_s: Timeout | None = None
    metadata: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        check_timeout("idle_timeout_s", self.idle_timeout_s)
        check_timeout("lifetime_s", self.lifetime_s)
        if self.metadata is not None:
            check_metadata(self.metadata)


def check_timeout(name: str, value: Timeout | None) -> None:
    if value is not None and not isinstance(value, Never) and not 0 < value <= MAX_TIMEOUT_S:
        raise InvalidRequest(f"{name} must be more than 0 and at most {MAX_TIMEOUT_S:.0f} seconds.")


def check_metadata(metadata: Mapping[str, str]) -> None:
    check_strings("metadata entry", metadata)
    if len(metadata) > MAX_METADATA_ENTRIES or _size(metadata) > MAX_METADATA_BYTES:
        raise InvalidRequest(
            f"metadata must not exceed {MAX_METADATA_ENTRIES} entries and {MAX_METADATA_BYTES} bytes."
        )


def _size(mapping: Mapping[str, str]) -> int:
    return sum(_bytes(text) for pair in mapping.items() for text in pair)


def _bytes(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        # Such text could be neither stored nor sent.
        raise InvalidRequest("A variable, metadata entry or key is not valid Unicode text.") from error

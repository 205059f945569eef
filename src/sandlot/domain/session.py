"""A session: what a client holds, how it moves from state to state, and when its time is over.

Pure: every function takes what is known and the time, and returns what follows.

    active ◄──► unresponsive                    as shown: it has its sandbox, which does not answer just now
    active ──lose──► lost ──recreate──► active (generation + 1)
      │                │
      └──end───────────┴──end──► ended          ended is final
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal

from sandlot.domain.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    SandboxLost,
    SandboxUnresponsive,
    SessionEnded,
)
from sandlot.domain.ids import is_name, is_thread
from sandlot.domain.limits import LimitChange, Limits
from sandlot.domain.variables import check_env, check_texts

DEFAULT_TENANT = "default"
DEFAULT_ENVIRONMENT = "base"
DEFAULT_IDLE_TIMEOUT_S = 30 * 60.0
DEFAULT_LIFETIME_S = 60 * 60.0
# Seconds; a bound on what may be asked for, "never" apart: a year.
MAX_TIMEOUT_S = 366 * 24 * 3600.0
MAX_METADATA_BYTES = 16 * 1024
MAX_METADATA_ENTRIES = 64
MAX_ENV_BYTES = 128 * 1024
MAX_IDEMPOTENCY_KEY = 200
LOST_WITH_A_SANDBOX = (
    "running commands",
    "shells",
    "files in /workspace and /tmp",
    "results of earlier execs",
)
KEPT_WITHOUT_A_SANDBOX = (
    "the session's id and thread",
    "metadata",
    "environment variables",
    "limits",
)
# Variables are secrets: no worker tells them to anybody, so they are gone with the one that had them.
LOST_WITH_A_WORKER = (*LOST_WITH_A_SANDBOX, "environment variables that the session was created with")
KEPT_WITHOUT_A_WORKER = ("the session's id and thread", "metadata", "limits")


class SessionState(StrEnum):
    """``UNRESPONSIVE`` is what an active session is shown as while its sandbox does not answer; it is on
    record nowhere, because it passes by itself.
    """

    ACTIVE = "active"
    UNRESPONSIVE = "unresponsive"
    LOST = "lost"
    ENDED = "ended"


class EndReason(StrEnum):
    DELETED = "deleted"
    IDLE = "idle"
    LIFETIME = "lifetime"


class Never:
    """The value of a timeout that never comes; its own type, because None means "as configured"."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NEVER"


NEVER = Never()
Timeout = float | Never
IfDifferent = Literal["error", "keep"]


@dataclass(frozen=True, slots=True)
class LossReport:
    """What became of a session's sandbox that is gone."""

    generation: int
    at: float
    reason: str
    lost: tuple[str, ...]
    kept: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Predecessor:
    """The session that a thread had before, and how it ended."""

    id: str
    reason: EndReason
    ended_at: float


@dataclass(frozen=True, slots=True)
class Session:
    """Times are seconds since the epoch. A timeout of None never comes."""

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
    # Whoever goes on with a conversation must not take this sandbox for the one that it had.
    predecessor: Predecessor | None = None
    end_reason: EndReason | None = None
    ended_at: float | None = None

    @property
    def expires_at(self) -> float | None:
        """When its time is over if nothing happens until then; None: never."""
        ends = []
        if self.idle_timeout_s is not None:
            ends.append(self.last_active_at + self.idle_timeout_s)
        if self.lifetime_s is not None:
            ends.append(self.created_at + self.lifetime_s)
        return min(ends, default=None)


@dataclass(frozen=True, slots=True)
class CreateSession:
    """``thread``: the one live session of this conversation is returned if there is one.

    ``env`` reaches every command. ``limits`` changes the environment's. Timeouts: None is "as the environment
    says", NEVER only where the settings allow it. ``recreate_lost``: a thread whose sandbox was lost gets a
    new one at once, with the loss reported in the session; otherwise the lost session itself is the answer.
    ``if_different``: what to do if the thread's session has another environment, variables or limits than are
    given here: say so (``ThreadDiffers``), or keep it as it is.
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
    # Not part of what is asked for: the same idempotency key may come with either.
    if_different: IfDifferent = field(default="error", compare=False)

    def __post_init__(self) -> None:
        if self.environment is not None and not is_name(self.environment):
            lower = self.environment.lower()
            hint = f"; did you mean {lower!r:.80}?" if is_name(lower) else ""
            raise InvalidRequest(f"{self.environment!r:.80} cannot be an environment's name{hint}")
        if self.thread is not None and not is_thread(self.thread):
            raise InvalidRequest("a thread's id must be 1-200 printable ASCII characters without spaces")
        if self.idempotency_key is not None and not 0 < _bytes(self.idempotency_key) <= MAX_IDEMPOTENCY_KEY:
            raise InvalidRequest(f"an idempotency key has 1-{MAX_IDEMPOTENCY_KEY} bytes")
        check_env(self.env)
        if _size(self.env) > MAX_ENV_BYTES:
            raise InvalidRequest(f"the environment variables exceed {MAX_ENV_BYTES} bytes")
        if self.if_different not in ("error", "keep"):
            raise InvalidRequest(f"if_different is 'error' or 'keep', not {self.if_different!r:.80}")
        check_timeout("idle_timeout_s", self.idle_timeout_s)
        check_timeout("lifetime_s", self.lifetime_s)
        check_metadata(self.metadata)


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a fleet adds to a create that it sends to a worker.

    ``reservation``: the place that is kept for it; it goes back with the session's record. ``predecessor``:
    the thread's last session, maybe of another worker. ``lost``: a session whose worker is gone, which gets a
    new sandbox here under its own id.
    """

    reservation: str | None = None
    predecessor: Predecessor | None = None
    lost: Session | None = None


@dataclass(frozen=True, slots=True)
class SessionChange:
    """None leaves a thing as it is. ``lifetime_s`` counts from the session's creation: extend or shorten."""

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
        raise InvalidRequest(f"{name} must be more than 0 and at most {MAX_TIMEOUT_S:.0f} seconds")


def check_metadata(metadata: Mapping[str, str]) -> None:
    check_texts("metadata entry", metadata)
    if len(metadata) > MAX_METADATA_ENTRIES or _size(metadata) > MAX_METADATA_BYTES:
        raise InvalidRequest(
            f"metadata has at most {MAX_METADATA_ENTRIES} entries and {MAX_METADATA_BYTES} bytes"
        )


def _size(mapping: Mapping[str, str]) -> int:
    return sum(_bytes(text) for pair in mapping.items() for text in pair)


def _bytes(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        # It could neither be written down nor sent on.
        raise InvalidRequest("a variable, metadata or key is not valid Unicode text") from error


# --- transitions ------------------------------------------------------------------------------


def touch(session: Session, now: float) -> Session:
    """Activity extends the idle time; a clock that went back shortens nothing."""
    if session.state is not SessionState.ACTIVE or now <= session.last_active_at:
        return session
    return replace(session, last_active_at=now)


def lose(session: Session, report: LossReport) -> Session:
    """A report about an earlier generation, or about what has ended, changes nothing."""
    if session.state is not SessionState.ACTIVE or report.generation != session.generation:
        return session
    return replace(session, state=SessionState.LOST, sandbox_id=None, loss=report)


def rested(session: Session, now: float) -> Session:
    """After a time in which nobody could use it, which does not count as idleness."""
    return replace(session, last_active_at=max(now, session.last_active_at))


def recreate(session: Session, sandbox_id: str, now: float) -> Session:
    if session.state is SessionState.ENDED:
        raise ended_error(session)
    if session.state is not SessionState.LOST:
        raise Conflict(f"session {session.id} has a living sandbox; only a lost one is made anew")
    return replace(
        session,
        state=SessionState.ACTIVE,
        generation=session.generation + 1,
        sandbox_id=sandbox_id,
        last_active_at=max(now, session.last_active_at),
    )


def end(session: Session, reason: EndReason, now: float) -> Session:
    """Ended stays as it ended first."""
    if session.state is SessionState.ENDED:
        return session
    return replace(session, state=SessionState.ENDED, sandbox_id=None, end_reason=reason, ended_at=now)


def no_session(session_id: str) -> NotFound:
    """``session_id`` is whatever was asked for."""
    return NotFound(f"there is no session {session_id[:64]!r}")


def ended_error(session: Session) -> SessionEnded:
    why = {
        EndReason.DELETED: "was deleted",
        EndReason.IDLE: "expired: it was idle for its idle timeout",
        EndReason.LIFETIME: "expired: its lifetime was over",
        None: "has ended",
    }[session.end_reason]
    return SessionEnded(
        f"session {session.id} {why}; create a new one",
        details={"reason": session.end_reason or "", "ended_at": session.ended_at},
    )


def predecessor(session: Session) -> Predecessor:
    """Of one that has ended."""
    assert session.end_reason is not None
    assert session.ended_at is not None
    return Predecessor(session.id, session.end_reason, session.ended_at)


def latest(*known: Predecessor | None) -> Predecessor | None:
    """The one that ended last, of what several remember."""
    return max((one for one in known if one is not None), key=lambda one: one.ended_at, default=None)


def loss_report(session: Session, reason: str, now: float) -> LossReport:
    """Of the sandbox that the session has, or had."""
    return LossReport(session.generation, now, reason, LOST_WITH_A_SANDBOX, KEPT_WITHOUT_A_SANDBOX)


def loss_of_worker(session: Session, now: float, worker_id: str | None = None) -> LossReport:
    """Of a session whose worker is gone, whether its sandbox was lost before that or with it."""
    gone = "its worker is gone" if worker_id is None else f"its worker {worker_id} is gone"
    at = now
    if session.state is SessionState.LOST and session.loss is not None:
        if session.loss.kept == KEPT_WITHOUT_A_WORKER:
            return session.loss  # said already
        gone, at = f"{session.loss.reason}; then {gone}", session.loss.at
    return LossReport(session.generation, at, gone, LOST_WITH_A_WORKER, KEPT_WITHOUT_A_WORKER)


def without_worker(session: Session, now: float, worker_id: str | None = None) -> Session:
    """What a session is once its worker is gone: lost, if it has not ended."""
    if session.state is SessionState.ENDED:
        return session
    loss = loss_of_worker(session, now, worker_id)
    return replace(session, state=SessionState.LOST, sandbox_id=None, loss=loss)


def lost_error(session: Session, *, may_have_executed: bool) -> SandboxLost:
    loss = session.loss
    assert loss is not None, "a session without a sandbox has lost it"
    return SandboxLost(
        f"the sandbox of session {session.id} is lost: {loss.reason}; "
        "recreate the session to go on with an empty one",
        may_have_executed=may_have_executed,
        details={
            "loss": {
                "generation": loss.generation,
                "at": loss.at,
                "reason": loss.reason,
                "lost": list(loss.lost),
                "kept": list(loss.kept),
            }
        },
    )


def unresponsive(session: Session) -> Session:
    """An active session as it is shown while its sandbox does not answer."""
    return (
        replace(session, state=SessionState.UNRESPONSIVE) if session.state is SessionState.ACTIVE else session
    )


def unresponsive_error(session_id: str, what: str, *, may_have_executed: bool) -> SandboxUnresponsive:
    """``what`` did not happen in time."""
    then = " by the exec's id" if may_have_executed else ""
    return SandboxUnresponsive(
        f"the sandbox of session {session_id} {what}: it may be frozen or overloaded; ask again later{then}, "
        "or recreate the session to go on with an empty sandbox",
        may_have_executed=may_have_executed,
        retry_after_s=5.0,
        details={"session_id": session_id},
    )


# --- expiry -----------------------------------------------------------------------------------


def due(session: Session, now: float) -> EndReason | None:
    """Why the session's time is over, or None. Whether something still runs is for the caller to ask."""
    if session.state is SessionState.ENDED:
        return None
    if session.lifetime_s is not None and now >= session.created_at + session.lifetime_s:
        return EndReason.LIFETIME
    if session.idle_timeout_s is not None and now >= session.last_active_at + session.idle_timeout_s:
        return EndReason.IDLE
    return None


def resolve_timeout(asked: Timeout | None, configured: float | None, *, never_allowed: bool) -> float | None:
    """What a request for a timeout comes to; None: never."""
    if asked is None:
        return configured
    if isinstance(asked, Never):
        if not never_allowed:
            raise InvalidRequest("this server lets no session live for ever: give a number of seconds")
        return None
    return asked

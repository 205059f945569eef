"""How a session moves from state to state, what is reported about it, and when it expires.

Pure: functions take the session and the time, and return the new session or a decision.

    active ◄──► unresponsive                    only shown: its sandbox does not answer now
    active ──lose──► lost ──recreate──► active (generation + 1)
    active, lost or hibernated ──restored──► active (generation + 1), with the files of a snapshot
    active ──hibernate──► hibernated ──wake──► active (generation + 1)
      │                │
      └──end───────────┴──end──► ended          ended is final, and reached from hibernated too
"""

from __future__ import annotations

from dataclasses import replace

from sandlot.domain.errors import (
    Busy,
    Conflict,
    InvalidRequest,
    NotFound,
    SandboxLost,
    SandboxUnresponsive,
    SandlotError,
    SessionEnded,
)
from sandlot.domain.session import (
    KEPT_FILES,
    KEPT_WITHOUT_A_SANDBOX,
    KEPT_WITHOUT_A_WORKER,
    LOST_WITH_A_SANDBOX,
    LOST_WITH_A_WORKER,
    EndReason,
    LossReport,
    Never,
    OnIdle,
    Predecessor,
    Session,
    SessionState,
    Timeout,
)


def touch(session: Session, now: float) -> Session:
    """Record activity, which restarts the idle timeout.

    A clock that went backwards shortens nothing.
    """
    used = session.state in (SessionState.ACTIVE, SessionState.HIBERNATED)
    if not used or now <= session.last_active_at:
        return session
    return replace(session, last_active_at=now)


def lose(session: Session, report: LossReport) -> Session:
    """Mark the session as lost.

    A report about an earlier generation or an ended session changes nothing.
    """
    if session.state is not SessionState.ACTIVE or report.generation != session.generation:
        return session
    return replace(session, state=SessionState.LOST, sandbox_id=None, loss=report)


def reset_idle_clock(session: Session, now: float) -> Session:
    """Restart the idle timeout.

    Time in which no client could use the session does not count as idle. For a hibernated session it does:
    a worker that restarts often would keep it for ever.
    """
    if session.state is SessionState.HIBERNATED:
        return session
    return replace(session, last_active_at=max(now, session.last_active_at))


def recreate(session: Session, sandbox_id: str, now: float) -> Session:
    """Give a lost session a new sandbox; raises if the session has ended or is not lost."""
    if session.state is SessionState.ENDED:
        raise ended_error(session)
    if session.state is not SessionState.LOST:
        raise Conflict(
            f"The sandbox of session {session.id} is still running. Only a lost or unresponsive sandbox "
            "can be replaced."
        )
    return replace(
        session,
        state=SessionState.ACTIVE,
        generation=session.generation + 1,
        sandbox_id=sandbox_id,
        last_active_at=max(now, session.last_active_at),
    )


def hibernate(session: Session, report: LossReport) -> Session:
    """The session without its sandbox, and with its files."""
    return replace(session, state=SessionState.HIBERNATED, sandbox_id=None, loss=report)


def wake(session: Session, sandbox_id: str, now: float) -> Session:
    """Give a hibernated session a new sandbox. Its lifetime begins again."""
    return replace(
        session,
        state=SessionState.ACTIVE,
        generation=session.generation + 1,
        sandbox_id=sandbox_id,
        last_active_at=max(now, session.last_active_at),
        woken_at=now,
    )


def restored(session: Session, sandbox_id: str, report: LossReport, now: float) -> Session:
    """The session with a new sandbox in place of its own, which ``report`` is about."""
    return replace(
        session,
        state=SessionState.ACTIVE,
        generation=session.generation + 1,
        sandbox_id=sandbox_id,
        loss=report,
        last_active_at=max(now, session.last_active_at),
        woken_at=now if session.state is SessionState.HIBERNATED else session.woken_at,
    )


def end(session: Session, reason: EndReason, now: float) -> Session:
    """End the session. A session that has already ended keeps its first reason."""
    if session.state is SessionState.ENDED:
        return session
    return replace(
        session,
        state=SessionState.ENDED,
        sandbox_id=None,
        workspace=None,
        volumes=(),
        end_reason=reason,
        ended_at=now,
    )


def no_session_error(session_id: str) -> NotFound:
    """The error for an unknown session. ``session_id`` is unchecked text from the caller."""
    return NotFound(f"Session {session_id[:64]!r} does not exist.")


def ended_error(session: Session) -> SessionEnded:
    why = {
        EndReason.DELETED: "was deleted",
        EndReason.IDLE: "expired after its idle timeout",
        EndReason.LIFETIME: "expired at the end of its lifetime",
        None: "has ended",
    }[session.end_reason]
    return SessionEnded(
        f"Session {session.id} {why}. Create a new one.",
        details={"reason": session.end_reason or "", "ended_at": session.ended_at},
    )


def lifetime_over(session: Session, now: float) -> SandlotError:
    """The error for new work in a session whose lifetime is over, while a command still runs in it."""
    if session.on_idle is OnIdle.HIBERNATE:
        return Busy(
            f"Session {session.id} is at the end of its lifetime. It hibernates when the command that still "
            "runs in it has ended, and wakes with the next call. Retry, or extend its lifetime.",
            retry_after_s=1.0,
        )
    over = ended_error(end(session, EndReason.LIFETIME, now))
    # A thread gets another session.
    over.retryable, over.retry_after_s = session.thread is not None, 1.0
    return over


def predecessor(session: Session) -> Predecessor:
    """Describe an ended session as a predecessor."""
    assert session.end_reason is not None
    assert session.ended_at is not None
    return Predecessor(session.id, session.end_reason, session.ended_at)


def latest_predecessor(*candidates: Predecessor | None) -> Predecessor | None:
    """The candidate that ended last. Several workers may each remember one."""
    known = [candidate for candidate in candidates if candidate is not None]
    return max(known, key=lambda candidate: candidate.ended_at, default=None)


def loss_report(session: Session, reason: str, now: float) -> LossReport:
    """Report the loss of the session's sandbox."""
    return LossReport(session.generation, now, reason, LOST_WITH_A_SANDBOX, _kept_by(session))


def _kept_by(session: Session) -> tuple[str, ...]:
    """What a session keeps without a sandbox."""
    return (*KEPT_WITHOUT_A_SANDBOX, *_volumes_of(session))


def _volumes_of(session: Session) -> tuple[str, ...]:
    return tuple(volume.report_text for volume in session.volumes)


def restore_report(session: Session, snapshot_id: str, now: float) -> LossReport:
    """Report what a restore took from the session, with its sandbox."""
    kept = tuple(thing for thing in _kept_by(session) if thing != KEPT_FILES)
    return LossReport(
        session.generation,
        now,
        f"its files were replaced by those of snapshot {snapshot_id}",
        (*LOST_WITH_A_SANDBOX, f"changes in /workspace that are not in snapshot {snapshot_id}"),
        kept,
    )


def hibernation_report(session: Session, reason: EndReason | None, now: float) -> LossReport:
    """Report what a session lost when it hibernated. ``reason``: why; None if somebody asked for it."""
    why = {
        EndReason.IDLE: "it hibernated after its idle timeout",
        EndReason.LIFETIME: "it hibernated at the end of its lifetime",
    }.get(reason or EndReason.DELETED, "it hibernated on request")
    return LossReport(session.generation, now, why, LOST_WITH_A_SANDBOX, _kept_by(session))


def without_files(report: LossReport) -> LossReport:
    """The report of a loss after which the session's files turned out to be gone too."""
    return replace(
        report,
        reason=f"{report.reason.removesuffix('.')}; its files are gone too",
        lost=(*report.lost, KEPT_FILES),
        kept=tuple(thing for thing in report.kept if thing != KEPT_FILES),
    )


def worker_loss_report(session: Session, now: float, worker_id: str | None = None) -> LossReport:
    """Report that the session's worker is gone, whether its sandbox was lost before or with the
    worker.
    """
    gone = "its worker is gone" if worker_id is None else f"its worker {worker_id} is gone"
    at = now
    if session.state in (SessionState.LOST, SessionState.HIBERNATED) and session.loss is not None:
        if session.loss.kept == KEPT_WITHOUT_A_WORKER:
            return session.loss  # reported already
        gone, at = f"{session.loss.reason.removesuffix('.')}; then {gone}", session.loss.at
    lost = (*LOST_WITH_A_WORKER, *_volumes_of(session))
    return LossReport(session.generation, at, gone, lost, KEPT_WITHOUT_A_WORKER)


def mark_worker_lost(session: Session, now: float, worker_id: str | None = None) -> Session:
    """The session after its worker is gone: lost, unless it has ended. Its volumes are there."""
    if session.state is SessionState.ENDED:
        return session
    loss = worker_loss_report(session, now, worker_id)
    return replace(session, state=SessionState.LOST, sandbox_id=None, workspace=None, volumes=(), loss=loss)


def lost_error(session: Session, *, may_have_executed: bool) -> SandboxLost:
    loss = session.loss
    assert loss is not None, "a session without a sandbox has lost it"
    has_files = any(thing.startswith(KEPT_FILES) for thing in loss.kept)
    files = "its files" if has_files else "an empty workspace"
    if loss.kept == KEPT_WITHOUT_A_WORKER:
        files = "its files from object storage, or an empty workspace if they are not there,"
    advice = {
        SessionState.ACTIVE: "It has a new sandbox by now.",
        SessionState.HIBERNATED: f"Its next use gives it {files} in a new sandbox.",
    }.get(session.state, f"Recreate the session to continue with {files} in a new sandbox.")
    return SandboxLost(
        f"The sandbox of session {session.id} is lost: {loss.reason.removesuffix('.')}. {advice}",
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


def as_unresponsive(session: Session) -> Session:
    """An active session as clients see it while its sandbox does not answer."""
    return (
        replace(session, state=SessionState.UNRESPONSIVE) if session.state is SessionState.ACTIVE else session
    )


def unresponsive_error(session_id: str, problem: str, *, may_have_executed: bool) -> SandboxUnresponsive:
    """The error for a sandbox that does not answer.

    ``problem``: a predicate, such as "does not answer".
    """
    how = " with the same exec id" if may_have_executed else ""
    return SandboxUnresponsive(
        f"The sandbox of session {session_id} {problem}. It may be frozen or overloaded. Retry "
        f"later{how}, or recreate the session to continue with its files in a new sandbox.",
        may_have_executed=may_have_executed,
        retry_after_s=5.0,
        details={"session_id": session_id},
    )


# --- expiry -----------------------------------------------------------------------------------


def expiry_reason(session: Session, now: float) -> EndReason | None:
    """Why the session has expired; None if it has not.

    The caller must check whether a command still runs.
    """
    if session.state is SessionState.ENDED:
        return None
    if session.keeps_files_unused:
        return EndReason.IDLE if now >= session.last_active_at + session.hibernation_s else None
    if session.lifetime_s is not None and now >= session.lifetime_from + session.lifetime_s:
        return EndReason.LIFETIME
    if session.idle_timeout_s is not None and now >= session.last_active_at + session.idle_timeout_s:
        return EndReason.IDLE
    return None


def resolve_timeout(asked: Timeout | None, configured: float | None, *, never_allowed: bool) -> float | None:
    """The timeout in seconds that a request gets; None means never."""
    if asked is None:
        return configured
    if isinstance(asked, Never):
        if not never_allowed:
            raise InvalidRequest(
                "This server does not allow sessions without an end. Pass a number of seconds, or set "
                "SANDLOT_ALLOW_NEVER on the server."
            )
        return None
    return asked

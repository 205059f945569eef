"""Refuses what sessions cannot have whose sandboxes are not on this machine."""

from __future__ import annotations

from sandlot.domain.environment import Environment
from sandlot.domain.errors import Unsupported
from sandlot.domain.session import CreateSession, LossReport, OnIdle, Session
from sandlot.domain.session_states import loss_report, without_files


def check_request(request: CreateSession, environment: Environment) -> None:
    if environment.keeps_files:
        return
    if request.limits.apply(environment.limits) != environment.limits:
        raise Unsupported(
            f"Environment {environment.name} cannot have other limits: the template at "
            f"{environment.provider} fixes them. Use an environment of the provider docker."
        )
    asked = {
        "snapshot": request.snapshot is not None,
        "volumes": bool(request.volumes),
        "on_idle=hibernate": request.on_idle is OnIdle.HIBERNATE,
    }
    for what, is_asked in asked.items():
        if is_asked:
            raise _refused(what, environment.name, environment.provider)


def no_workspace_error(session: Session, what: str) -> Unsupported:
    """For an active session without a workspace: its files end with its sandbox."""
    return _refused(what, session.environment, "its provider")


def check_hibernates(session: Session) -> None:
    if session.workspace is None:
        raise no_workspace_error(session, "hibernation")


def loss_of(session: Session, reason: str, now: float) -> LossReport:
    """The report of a lost sandbox. A session without a workspace has lost its files with it."""
    report = loss_report(session, reason, now)
    return report if session.workspace is not None else without_files(report)


def _refused(what: str, environment: str, provider: str) -> Unsupported:
    return Unsupported(
        f"Environment {environment} cannot do {what}: {provider} keeps files with their sandbox only. Use an "
        "environment of the provider docker."
    )

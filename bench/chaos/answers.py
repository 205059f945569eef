"""Turns the answers that a client got into fields of history events."""

from __future__ import annotations

from typing import Any

from bench.chaos.history import Event, Listed
from sandlot.domain.errors import SandlotError
from sandlot.domain.execution import ExecResult, Verdict
from sandlot.domain.service import Opened
from sandlot.domain.session import Session


def error_event(number: int, at: float, error: SandlotError) -> Event:
    loss = error.details.get("loss")
    return Event(
        "unknown" if error.may_have_executed else "fail",
        at,
        op=number,
        code=error.code,
        retryable=error.retryable,
        may_have_executed=error.may_have_executed,
        message=error.message,
        loss=loss.get("generation") if isinstance(loss, dict) else None,
    )


def unexpected_event(number: int, at: float, code: str, message: str) -> Event:
    return Event(
        "unknown",
        at,
        op=number,
        code=code,
        message=message,
        retryable=False,
        may_have_executed=True,
    )


def session_fields(session: Session) -> dict[str, Any]:
    return {
        "session": session.id,
        "generation": session.generation,
        "state": session.state.value,
        "loss": session.loss.generation if session.loss else None,
    }


def opened_fields(opened: Opened) -> dict[str, Any]:
    return session_fields(opened.session)


def result_fields(result: ExecResult) -> dict[str, Any]:
    if result.verdict is not Verdict.OK:
        raise RuntimeError(f"the command did not end by itself: {result!r:.300}")
    return {"generation": result.generation, "value": result.stdout.decode().strip()}


def to_listed(session: Session) -> Listed:
    return Listed(
        session.id,
        session.generation,
        session.state.value,
        session.thread,
        session.sandbox_id,
        session.metadata.get("tag"),
    )

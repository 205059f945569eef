"""Whether the session that a thread has is what is asked for. Pure.

Compared is what is given, and what a session keeps for its whole life: its environment, variables and limits.
Timeouts and metadata can be changed by whoever holds the session, so they say how a new one begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from sandlot.domain.errors import ThreadDiffers
from sandlot.domain.session import CreateSession, Session


def check_same(request: CreateSession, session: Session, env: Mapping[str, str] | None) -> None:
    """``ThreadDiffers`` for what the thread's session has otherwise than asked for.

    ``env``: its variables; None where nobody has them any more, since they were lost with their worker.
    """
    if request.thread is None or request.if_different == "keep":
        return
    different = differences(request, session, env)
    if different:
        raise ThreadDiffers(
            f"thread {session.thread!r} has a session with other options: {'; '.join(different.values())}. "
            "Delete that session to begin anew, or give if_different='keep' to go on with it as it is",
            details={"session_id": session.id, "different": list(different)},
        )


def differences(request: CreateSession, session: Session, env: Mapping[str, str] | None) -> dict[str, str]:
    """By option, in words. The values of variables are secrets and are not told."""
    found = {}
    if request.environment is not None and request.environment != session.environment:
        found["environment"] = f"its environment is {session.environment}, not {request.environment}"
    for name, asked in asdict(request.limits).items():
        has = getattr(session.limits, name)
        if asked is not None and asked != has:
            found[f"limits.{name}"] = f"its {name} is {has:g}, not {asked:g}"
    if env is not None:
        names = sorted(name for name, value in request.env.items() if env.get(name) != value)
        if names:
            found["env"] = f"its variables differ in {', '.join(names)[:200]}"
    return found

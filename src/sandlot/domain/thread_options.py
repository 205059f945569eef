"""Whether a thread's existing session matches the options of a new request. Pure.

It compares only options that the request gives and that a session keeps for life: environment,
variables, limits, the network policy, volumes and whether it is recorded. Clients can change timeouts and
metadata later, so those only apply to new sessions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from sandlot.domain.errors import ThreadDiffers
from sandlot.domain.session import CreateSession, Session
from sandlot.domain.volumes.volume import is_among


def check_thread_options(request: CreateSession, session: Session, env: Mapping[str, str] | None) -> None:
    """Raise ``ThreadDiffers`` if the thread's session has other options than the request asks for.

    ``env``: the session's variables; None if they were lost with their worker.
    """
    if request.thread is None or request.if_different == "keep":
        return
    different = differences(request, session, env)
    if different:
        raise ThreadDiffers(
            f"Thread {session.thread!r} has a session with different options: "
            f"{'; '.join(different.values())}. Delete that session to start over, or pass "
            "if_different='keep' to use it as it is.",
            details={"session_id": session.id, "different": list(different)},
        )


def differences(request: CreateSession, session: Session, env: Mapping[str, str] | None) -> dict[str, str]:
    """The options that differ, each described in words.

    The values of variables are secret and left out.
    """
    different = {}
    if request.environment is not None and request.environment != session.environment:
        different["environment"] = f"its environment is {session.environment}, not {request.environment}"
    for name, asked in asdict(request.limits).items():
        actual = getattr(session.limits, name)
        if asked is not None and asked != actual:
            different[f"limits.{name}"] = f"its {name} is {actual:g}, not {asked:g}"
    if request.record and not session.record:
        different["record"] = "it is not recorded"
    if request.network is not None and request.network != session.network:
        different["network"] = "it asked for another network policy"
    if request.volumes and not (
        len(request.volumes) == len(session.volumes)
        and all(is_among(use, session.volumes) for use in request.volumes)
    ):
        different["volumes"] = f"it has {_described(session)}"
    if env is not None:
        names = sorted(name for name, value in request.env.items() if env.get(name) != value)
        if names:
            different["env"] = f"its variables differ in {', '.join(names)[:200]}"
    return different


def _described(session: Session) -> str:
    if not session.volumes:
        return "no volumes"
    return "the volumes " + ", ".join(f"{volume.name} ({volume.mode.value})" for volume in session.volumes)

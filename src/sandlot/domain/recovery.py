"""What a worker does with the sandboxes it finds at start-up, and with unknown sandboxes. Pure.

Start-up is recovery. The records say what should exist, the engine says what does exist, and this
module decides what to do. An unknown sandbox is never removed at first sight: the worker must see
it twice, and a grace period must pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from sandlot.domain.session import Session, SessionState

LIVE_STATES = frozenset({"running", "paused"})


class Purpose(StrEnum):
    """Why a sandbox exists. WARM: no session has it yet. REMOVING: its removal has been decided and
    must be finished.
    """

    WARM = "warm"
    SESSION = "session"
    REMOVING = "removing"


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    id: str
    environment: str
    purpose: Purpose


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do at start-up. ``adopt`` and ``lose`` list sessions; ``lose`` adds the reason.
    ``remove`` lists sandboxes.
    """

    adopt: tuple[Session, ...]
    lose: tuple[tuple[Session, str], ...]
    remove: tuple[str, ...]


def plan(sessions: Iterable[Session], sandboxes: Iterable[SandboxRecord], found: Mapping[str, str]) -> Plan:
    """Decide what a starting worker does. ``found``: its sandboxes in the engine, id → state.

    Warm sandboxes of an earlier process are removed: the image or the settings may have changed
    since.
    """
    adopt: list[Session] = []
    lose: list[tuple[Session, str]] = []
    kept: set[str] = set()
    for session in sessions:
        if session.state is not SessionState.ACTIVE or session.sandbox_id is None:
            continue
        state = found.get(session.sandbox_id)
        if state in LIVE_STATES:
            adopt.append(session)
            kept.add(session.sandbox_id)
        elif state is None:
            lose.append((session, "its container was gone when the worker started"))
        else:
            lose.append((session, f"its container was {state} when the worker started"))
    remove = [record.id for record in sandboxes if record.id not in kept]
    return Plan(tuple(adopt), tuple(lose), tuple(remove))


def sweep(
    unknown: Mapping[str, float], seen_before: Iterable[str], now: float, grace_s: float
) -> tuple[tuple[str, ...], frozenset[str]]:
    """Decide which unknown sandboxes to remove now, and which to look for again.

    ``unknown``: id → creation time. The engine's clock may differ from ours, so a sandbox with a
    creation time in the future is kept for now.
    """
    before = set(seen_before)
    remove = tuple(
        sandbox_id
        for sandbox_id, made_at in unknown.items()
        if sandbox_id in before and now - made_at >= grace_s
    )
    return remove, frozenset(unknown) - frozenset(remove)

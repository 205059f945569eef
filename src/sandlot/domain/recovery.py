"""What a worker does about what it finds when it starts, and about sandboxes that nobody knows. Pure.

Start-up is recovery: the records say what was meant to be, the engine says what is, and this says what
follows. Nothing here deletes on one look: an unknown sandbox is removed after two sightings and a grace
period.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from sandlot.domain.session import Session, SessionState

LIVE_STATES = frozenset({"running", "paused"})


class Purpose(StrEnum):
    """Why a sandbox is there. WARM: nobody has it yet. REMOVING: its removal was decided and must be
    finished.
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
    """``adopt`` and ``lose`` name sessions; ``lose`` says why. ``remove`` names sandboxes."""

    adopt: tuple[Session, ...]
    lose: tuple[tuple[Session, str], ...]
    remove: tuple[str, ...]


def plan(sessions: Iterable[Session], sandboxes: Iterable[SandboxRecord], found: Mapping[str, str]) -> Plan:
    """``found``: the engine's sandboxes of ours, id → state.

    A warm sandbox belongs to the life that made it: its successor may have another image or other settings.
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
    """Which unknown sandboxes to remove now, and which to look for again.

    ``unknown``: id → when it was made. The engine's clock may differ from ours: one from the future waits.
    """
    before = set(seen_before)
    remove = tuple(
        sandbox_id
        for sandbox_id, made_at in unknown.items()
        if sandbox_id in before and now - made_at >= grace_s
    )
    return remove, frozenset(unknown) - frozenset(remove)

"""What the fake keeps of a session, and the pool that it reports."""

from __future__ import annotations

from dataclasses import dataclass

from sandlot.domain.capacity.pool import PoolStats
from sandlot.domain.environment import Recipe
from sandlot.domain.session import CreateSession, Session
from sandlot.domain.session_states import as_unresponsive
from sandlot.testing.fake.computer import FakeComputer


@dataclass
class Record:
    session: Session
    request: CreateSession
    computer: FakeComputer | None

    @property
    def visible_session(self) -> Session:
        silent = self.computer is not None and self.computer.frozen
        return as_unresponsive(self.session) if silent else self.session


def full_pool(recipe: Recipe) -> PoolStats:
    """A pool that is always full, because creating a fake sandbox takes no time."""
    size = recipe.pool.size
    return PoolStats(ready=size, making=0, waiting=0, target=size, target_reason="a fake", hits=0)

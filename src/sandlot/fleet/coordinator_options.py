"""What a coordinator is told about itself and its workers; times in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sandlot.domain.execution import ExecRequest

# Seconds beyond the worker's own deadline of a call, for the way there and back.
HOP_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    coordinator_id: str = "coordinator"
    # Sessions of one tenant; None: as many as the workers hold.
    max_sessions: int | None = None
    # Whether clients are told the way straight to the workers.
    direct: bool = True
    # Workers that should be there; health names those that are not.
    expected: tuple[str, ...] = ()
    # As the workers have them: by then an exec has ended there, or a call on a sandbox.
    max_exec_timeout_s: float = 3600.0
    exec_grace_s: float = 20.0

    @property
    def answers_within_s(self) -> float:
        """A worker has answered by then, or has said that the sandbox did not."""
        return self.exec_grace_s + HOP_S

    def ends_within(self, request: ExecRequest) -> float | None:
        """The same of an exec to its end. None: in a shell it waits for its turn, however long that is."""
        if request.shell is not None:
            return None
        timeout_s = self.max_exec_timeout_s if request.timeout_s is None else request.timeout_s
        return timeout_s + self.answers_within_s

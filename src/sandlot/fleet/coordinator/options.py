"""A coordinator's options. All times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sandlot.domain.execution import ExecRequest

# Seconds on top of the worker's own deadline of a call, for the network round trip.
HOP_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    coordinator_id: str = "coordinator"
    # Whether clients get an address and a token to call the workers directly.
    direct: bool = True
    # URLs of the workers that should have joined. Health lists those that have not.
    expected: tuple[str, ...] = ()
    # The workers' own limits: a worker ends an exec, or a call on a sandbox, within these times.
    max_exec_timeout_s: float = 3600.0
    exec_grace_s: float = 20.0

    @property
    def call_timeout_s(self) -> float:
        """By then a worker has answered, or has reported that the sandbox does not answer."""
        return self.exec_grace_s + HOP_S

    def exec_timeout_s(self, request: ExecRequest) -> float | None:
        """By then a worker has answered with the exec's result.

        None for an exec in a shell: it may wait any time until earlier execs have ended.
        """
        if request.shell is not None:
            return None
        timeout_s = self.max_exec_timeout_s if request.timeout_s is None else request.timeout_s
        return timeout_s + self.call_timeout_s

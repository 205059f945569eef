"""One member of a real fleet, a worker or a coordinator, as a process of its own."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

import httpx

from sandlot.fleet.directory.contract import Timings
from tests.faults.rig import ServerProcess
from tests.fleet_faults.network import own_group

SANDLOT = [sys.executable, "-m", "sandlot"]
ASK_S = 20.0  # two cores carry the whole fleet


class Member(ServerProcess):
    """``redis``: the variables that say where the directory is."""

    def __init__(
        self,
        command: str,
        redis: Mapping[str, str],
        timings: Timings,
        **options: Any,
    ) -> None:
        super().__init__(
            command=[*SANDLOT, command],
            group=own_group(),
            lease_s=str(timings.lease_s),
            lost_after_s=str(timings.lost_after_s),
            **options,
        )
        self.environ |= redis

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    async def open_health(self) -> dict[str, Any]:
        """What anybody may ask."""
        async with httpx.AsyncClient() as http:
            answer = await http.get(f"{self.url}/health", timeout=ASK_S)
            body: dict[str, Any] = answer.json()
            return body

    async def is_ready(self) -> bool:
        """For new sessions too."""
        async with httpx.AsyncClient() as http:
            answer = await http.get(f"{self.url}/ready", timeout=ASK_S)
            return answer.status_code == 200 and answer.json().get("creates", True)

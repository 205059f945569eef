"""What must hold after every fault, whatever it was. The numbers are those of the project's list of invariants.

I1, I5 and I9 are looked at by ``ServerProcess.settle``; the rest is for tests to ask where it applies.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from sandlot import AsyncSession
from sandlot.domain.errors import SandlotError

# I9, generously: what one sandbox keeps open in its server, and what is not worth a question.
FDS_OF_A_SANDBOX = 4
SPARE_FDS = 40
SPARE_THREADS = 24
SPARE_MIB = 120
# What a server never writes: an error that nobody foresaw.
UNFORESEEN = re.compile(r"Traceback|request failed|never retrieved|never awaited")


@dataclass(frozen=True)
class Footprint:
    """I9: what a process holds."""

    fds: int
    threads: int
    mib: int

    @classmethod
    def of(cls, pid: int) -> Footprint:
        status = Path(f"/proc/{pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        return cls(
            fds=len(os.listdir(f"/proc/{pid}/fd")),
            threads=int(fields["Threads"]),
            mib=int(fields["VmRSS"].split()[0]) // 1024,
        )

    def is_near(self, baseline: Footprint, sandboxes: int) -> bool:
        return (
            self.fds <= baseline.fds + SPARE_FDS + FDS_OF_A_SANDBOX * sandboxes
            and self.threads <= baseline.threads + SPARE_THREADS
            and self.mib <= baseline.mib + SPARE_MIB
        )


def unforeseen(log: str) -> list[str]:
    return [line for line in log.splitlines() if UNFORESEEN.search(line)]


def counted(name: str, seconds: float = 0) -> str:
    """I2: a command that leaves a mark each time that it runs, and an output that can be checked."""
    return f"echo ran >> ran-{name}; sleep {seconds}; echo done {name}"


def until_told(name: str) -> str:
    """A ``counted`` command that runs until ``TELL`` is run beside it, however long that takes."""
    return f"echo ran >> ran-{name}; until test -e told; do sleep 0.1; done; echo done {name}"


TELL = "touch told"


async def times_run(session: AsyncSession, name: str) -> int:
    return int((await session.run(f"cat ran-{name} 2>/dev/null | wc -l")).output)


def told(error: BaseException) -> SandlotError:
    """I12: an error says what it is, whether to try again, and whether something may have run."""
    assert isinstance(error, SandlotError), repr(error)
    assert error.code != "internal", error.message
    assert error.message
    assert isinstance(error.retryable, bool)
    assert isinstance(error.may_have_executed, bool)
    return error


def problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """I12 over HTTP: the body of a refusal, with its fields."""
    assert response.status_code == status, f"{response.status_code} {response.text}"
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert (body["code"], body["status"]) == (code, status)
    assert isinstance(body["retryable"], bool)
    assert isinstance(body["may_have_executed"], bool)
    assert body["detail"]
    return body

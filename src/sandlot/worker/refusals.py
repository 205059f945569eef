"""Why a worker takes no new sessions."""

from __future__ import annotations

from sandlot.domain.errors import Unavailable


def stopping() -> Unavailable:
    return Unavailable(
        "this server is stopping and takes no new sessions",
        retry_after_s=2.0,
        details={"reason": "stopping"},
    )


def no_room_on_disk(problem: str) -> Unavailable:
    return Unavailable(
        f"this worker takes no new sessions: {problem}; free some space there",
        retry_after_s=5.0,
        details={"reason": "storage_full"},
    )


def draining() -> Unavailable:
    return Unavailable(
        "this worker is being emptied and takes no new sessions",
        retry_after_s=1.0,
        details={"reason": "draining"},
    )

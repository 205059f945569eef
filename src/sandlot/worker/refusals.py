"""Errors of a worker that takes no new sessions. A create that waited in vain fails in ``pool``."""

from __future__ import annotations

from sandlot.domain.errors import Unavailable
from sandlot.domain.session import ENDED_MEANWHILE


def stopping() -> Unavailable:
    return Unavailable(
        "This server is shutting down and accepts no new sessions. Retry.",
        retry_after_s=2.0,
        details={"reason": "stopping"},
    )


def no_room_on_disk(problem: str) -> Unavailable:
    return Unavailable(
        f"This worker accepts no new sessions: {problem.removesuffix('.')}. Free some space there.",
        retry_after_s=5.0,
        details={"reason": "storage_full"},
    )


def ended_meanwhile() -> Unavailable:
    return Unavailable(
        "The session ended while this request was on its way to it. Retry.",
        retry_after_s=0.2,
        details={"reason": ENDED_MEANWHILE},
    )


def environment_changed(name: str) -> Unavailable:
    return Unavailable(
        f"Environment {name} was changed on the server while this request waited for a sandbox. Retry.",
        retry_after_s=0.2,
        details={"reason": "environment_changed"},
    )


def draining() -> Unavailable:
    return Unavailable(
        "This worker is draining and accepts no new sessions. Retry, or run `sandlot fleet undrain WORKER`.",
        retry_after_s=1.0,
        details={"reason": "draining"},
    )

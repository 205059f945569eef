"""The directory's pure rules: leases, settling, turns, and its errors.

The scripts in ``scripts/`` apply the same rules inside Redis. The conformance suite compares both.
"""

from __future__ import annotations

import re

from sandlot.domain.errors import Conflict, InvalidRequest, Unavailable, Unsupported
from sandlot.fleet.directory.contract import Fenced, WorkerState

# A worker that never finishes recording keeps the directory unsettled for at most this many leases
# after the directory's creation.
MAX_SETTLING_LEASES = 10
# Workers that a create considers, in the order of their turns, before it takes the one with most
# room.
MAX_CANDIDATES = 16
# Stands for a worker id in records. No real worker can have this id.
NO_WORKER = ""
_WORKER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def worker_state(now: float, lease_end: float, lost_after: float) -> WorkerState:
    if now < lease_end:
        return WorkerState.ALIVE
    return WorkerState.LATE if now < lease_end + lost_after else WorkerState.GONE


def extend_settling(settles: float, born: float, now: float, lease: float) -> float:
    """Return when the directory settles, after a worker reported that it is still recording.

    A settled directory stays settled.
    """
    if now >= settles:
        return settles
    return max(settles, min(now + lease, born + MAX_SETTLING_LEASES * lease))


def next_turn(turn: float | None, last: float, free: int) -> float:
    """Return the next turn of a worker that offers room. ``last`` is the turn of the last create.

    Each create moves its worker's turn on by 1 / its room, so that workers get creates in
    proportion to the room they have left. A worker that is new, or was passed over, does not catch
    up. A worker with more room than before waits no longer than its next turn.
    """
    latest = last + 1 / free
    return latest if turn is None else min(max(turn, last), latest)


def check_worker_id(worker_id: str) -> None:
    if _WORKER_ID.fullmatch(worker_id) is None:
        raise InvalidRequest(
            f"{worker_id!r:.80} is not a valid worker id. Use 1-63 letters, digits, dots, dashes or "
            "underscores."
        )


# --- errors -----------------------------------------------------------------------------------


def taken_id(worker_id: str, url: str, seconds: float) -> Conflict:
    return Conflict(
        f"Worker {worker_id} is already running in another process, at {url}. Give this worker another "
        f"id, or stop the other one and wait {seconds:.1f} s for its lease to end.",
        retry_after_s=seconds,
        details={"worker_id": worker_id, "url": url},
    )


def evicting(policy: str) -> Unsupported:
    return Unsupported(
        f"This Redis evicts keys when its memory is full (maxmemory-policy {policy}), which would lose "
        "the directory. Set maxmemory-policy to noeviction, or use a separate Redis for the fleet."
    )


def replaced(worker_id: str, epoch: int) -> Fenced:
    return Fenced(
        f"Another process has joined the fleet as worker {worker_id} since epoch {epoch}. This process must "
        "stop.",
        replaced=True,
    )


def unknown_lease(worker_id: str, epoch: int) -> Fenced:
    return Fenced(
        f"The directory has no record of worker {worker_id} with epoch {epoch}. Join again.", replaced=False
    )


def unsettled(seconds: float) -> Unavailable:
    return Unavailable(
        "The fleet's directory is being rebuilt from the workers and does not know all sessions yet. Retry.",
        retry_after_s=max(min(seconds, 1.0), 0.1),
        details={"reason": "unsettled"},
    )


def late(worker_id: str, seconds: float) -> Unavailable:
    return Unavailable(
        f"Worker {worker_id}, which has the session, is not responding. Retry. If it does not come back "
        f"within {seconds:.0f} s, the session is lost and can be recreated on another worker.",
        retry_after_s=1.0,
        details={"reason": "worker_late", "worker_id": worker_id},
    )


def opening() -> Unavailable:
    return Unavailable(
        "Another request is creating a session for the same thread or idempotency key, with other limits or "
        "another API key. Retry.",
        retry_after_s=0.2,
        details={"reason": "opening"},
    )


def no_room(environment: str, *, offered: bool) -> Unavailable:
    what = "all workers are full" if offered else "no live worker offers it"
    return Unavailable(
        f"No capacity for environment {environment}: {what}. Retry, or add workers.",
        retry_after_s=2.0,
        details={"reason": "capacity" if offered else "no_worker"},
    )


def only_one(worker_id: str, state: WorkerState, environment: str, *, offered: bool) -> Unavailable:
    """The refusal of a create that only one worker can serve. ``offered``: whether it offers any room."""
    if state is not WorkerState.ALIVE:
        gone = state is WorkerState.GONE
        return Unavailable(
            f"Worker {worker_id}, which alone has what the session needs, "
            + ("is gone. Once it is back, retry." if gone else "is not responding. Retry."),
            # Waiting a little does not bring back a worker that has been away for so long.
            retryable=not gone,
            retry_after_s=None if gone else 1.0,
            details={"reason": "worker_gone" if gone else "worker_late", "worker_id": worker_id},
        )
    what = "it is full" if offered else f"it is draining, or does not offer environment {environment}"
    return Unavailable(
        f"No capacity on worker {worker_id}, which alone has what the session needs: {what}. Retry later.",
        retry_after_s=2.0,
        details={"reason": "capacity", "worker_id": worker_id},
    )


def not_gone(session_id: str, worker_id: str) -> Conflict:
    return Conflict(
        f"Session {session_id} still belongs to worker {worker_id}, or is being taken over from it. Retry.",
        retryable=True,
        retry_after_s=1.0,
    )


def volume_not_gone(name: str, worker_id: str) -> Conflict:
    return Conflict(
        f"Volume {name} is on worker {worker_id}, which is not given up yet. Retry once it is back.",
        retryable=True,
        retry_after_s=1.0,
    )

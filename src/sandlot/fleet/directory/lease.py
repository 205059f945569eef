"""``Lease``: a worker's right to write to the directory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of a worker's process to write, from ``join``.

    ``generation`` is that of the directory, not of a session. With a new lease the worker records
    all its sessions, because it cannot know why it had to join again.
    """

    worker_id: str
    epoch: int
    token: str
    generation: str

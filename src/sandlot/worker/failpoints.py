"""Named steps at which a test may kill the process, to prove that the next start finishes the work.

A worker that dies between two steps is not a special case: start-up is recovery. The tests go
through every step in this list. Outside tests, ``reached`` does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class Step(StrEnum):
    SANDBOX_RECORDED = "sandbox recorded"
    SANDBOX_MADE = "sandbox made"
    SESSION_RECORDED = "session recorded"
    SESSION_BOUND = "session bound"
    LOSS_RECORDED = "loss recorded"
    END_RECORDED = "end recorded"
    SANDBOX_REMOVED = "sandbox removed"
    ADOPTED = "adopted"
    SNAPSHOT_STORED = "snapshot stored"
    SNAPSHOT_RECORDED = "snapshot recorded"
    SNAPSHOT_FORGOTTEN = "snapshot forgotten"
    SNAPSHOT_CLONED = "snapshot cloned"
    WORKSPACE_ATTACHED = "workspace attached"
    VOLUME_RECORDED = "volume recorded"
    VOLUME_STORED = "volume stored"
    VOLUME_NAMED = "volume named"
    VOLUME_FORGOTTEN = "volume forgotten"
    VOLUME_ATTACHED = "volume attached to a session's sandbox"
    SEED_STORED = "seed stored"
    SEED_RECORDED = "seed recorded"
    SEED_CLONED = "seed cloned"
    HIBERNATION_RECORDED = "hibernation recorded"
    FILES_REPLACED = "files replaced"
    EXPORT_PUBLISHED = "export published"
    EXPORT_RECORDED = "export recorded"
    SNAPSHOT_FETCHED = "snapshot fetched"
    ARTIFACT_STORED = "artifact stored"
    ARTIFACT_RECORDED = "artifact recorded"
    ARTIFACT_FORGOTTEN = "artifact forgotten"
    COPY_PUBLISHED = "copy published"
    COPY_RECORDED = "copy recorded"
    COPY_DELETED = "copy deleted"
    COPIES_FOUND = "copies found"


hook: Callable[[Step], None] | None = None


def reached(step: Step) -> None:
    if hook is not None:
        hook(step)

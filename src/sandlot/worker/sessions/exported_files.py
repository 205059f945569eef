"""Files of sessions that lost theirs with a worker or its disk: from their newest export, if there is one."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import structlog

from sandlot.domain.errors import StorageProblem
from sandlot.domain.session import Session
from sandlot.domain.session_states import without_files
from sandlot.domain.workspaces.exports import outlives, with_exported_files
from sandlot.worker.workspaces.workspaces import NEW_FILES, Source, Workspaces

log = structlog.get_logger("sandlot.opening")


async def has_outlived(workspaces: Workspaces, lost: Session, now: float) -> bool:
    """Whether a session whose worker is gone can go on."""
    if outlives(lost, None, now):
        return True
    return workspaces.imports is not None and outlives(lost, await workspaces.imports.newest(lost), now)


async def with_exported(workspaces: Workspaces, lost: Session) -> tuple[Session, Source]:
    """The lost session with its loss report, and where its next files come from.

    Raises if the object storage does not answer: nobody knows then whether there is an export.
    """
    if workspaces.imports is None or not workspaces.abilities.snapshots:
        return lost, NEW_FILES
    snapshot = await workspaces.imports.take_over(lost)
    if snapshot is None:
        return lost, NEW_FILES
    assert lost.loss is not None, "a session without a sandbox has lost it"
    loss = with_exported_files(lost.loss, snapshot.created_at)
    return replace(lost, loss=loss), Source(snapshot=snapshot.id)


async def save_taken_over(workspaces: Workspaces, session: Session) -> None:
    """Save what a session has taken over as its own export, once it is recorded here."""
    if workspaces.imports is not None:
        with contextlib.suppress(StorageProblem):  # a later snapshot is saved instead
            await workspaces.imports.taken_over(session)


def without_workspace(session: Session) -> Session:
    """A session whose files turned out to be gone."""
    assert session.loss is not None, "a session without a sandbox has lost it"
    log.error("a session's files are gone", session=session.id)
    return replace(session, workspace=None, loss=without_files(session.loss))

"""Lines of steps: which snapshot a session's files come from, and when a step must restore or take one.

Pure: each function takes the line of a workspace and returns a decision, or the line that comes next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sandlot.domain.errors import Conflict
from sandlot.domain.workspaces.snapshots import TakeSnapshot
from sandlot.domain.workspaces.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Line:
    """``head``: the snapshot that the files come from. ``step``: the last step; empty if there was none.
    ``began``: the snapshot that it began with. ``open``: whether it has not ended.
    """

    head: str | None = None
    step: str = ""
    began: str | None = None
    open: bool = False


def line_of(recorded: Line | None, workspace: Workspace) -> Line:
    """The line of a workspace. Without a record, its files are those that it began with."""
    return recorded or Line(workspace.snapshot)


def goes_on(line: Line, snapshot_id: str, step: str) -> bool:
    """Whether a step that wants the files of a snapshot can use the files as they are.

    What another step did since, and never ended, is not part of the snapshot. What the step itself did is: it
    may have several parts, of which one ends before another one begins.
    """
    if line.step == step:
        return line.began == snapshot_id
    return line.head == snapshot_id and not line.open


def begun(line: Line, snapshot_id: str, step: str) -> Line:
    """The line once a step has begun with the files of a snapshot."""
    if line.step == step and line.began == snapshot_id:
        return replace(line, open=True)
    return Line(snapshot_id, step, snapshot_id, open=True)


def check_ends(line: Line, request: TakeSnapshot) -> None:
    """Raise ``Conflict`` if a request ends a step, but the files are no longer that step's."""
    if request.step and request.step != line.step:
        raise Conflict(
            "The step cannot end, because the session's files are no longer those of this step: they were "
            "restored, or another step has begun. Begin the step again to repeat it.",
            details={"reason": "step_overtaken"},
        )


def may_answer_with_head(line: Line, request: TakeSnapshot) -> bool:
    """Whether the answer to a request is the line's last snapshot, if no file has changed since."""
    return bool(request.step) and line.head is not None


def line_after(line: Line, request: TakeSnapshot, snapshot_id: str, *, base: bool = False) -> Line | None:
    """The line after a snapshot was taken or found to be the last one; ``None``: it stays as it is.

    ``base``: whether it has the files that a session began its first step with.
    """
    if base:
        return Line(snapshot_id)
    return replace(line, head=snapshot_id, open=False) if request.step else None

"""Marks of exports, what a loss report says of exported files, and which lost sessions have not ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandlot.domain.session import KEPT_FILES, OnIdle, Session
from sandlot.domain.session_states import lost_error, mark_worker_lost
from sandlot.domain.workspaces.exports import (
    Cause,
    ExportMeta,
    Mark,
    marks_in,
    outlives,
    with_exported_files,
)
from sandlot.domain.workspaces.snapshots import Snapshot

SNAPSHOT = Snapshot("snp_" + "1" * 32, "ses_1", 50.0, "base", "tenant")
SESSION = Session("ses_1", "base", 0.0, 0.0, lifetime_s=100.0, idle_timeout_s=None)


def test_the_newest_mark_is_first() -> None:
    marks = [
        Mark(2, 1.5, "snp_" + "a" * 32),
        Mark(10, 0.25, "snp_" + "b" * 32),
        Mark(9, 1_799_999_999.123456, "snp_" + "c" * 32),
    ]
    names = [mark.name for mark in marks]
    assert marks_in(["", *names, f"{names[0]}x", "../" + names[0], "snp_" + "d" * 32]) == [
        marks[1],
        marks[2],
        marks[0],
    ]


def test_the_report_says_which_files_are_kept() -> None:
    lost = mark_worker_lost(SESSION, 60.0, "w1")
    assert lost.loss is not None
    assert "object storage" in lost_error(lost, may_have_executed=False).message
    report = with_exported_files(lost.loss, 50.0)
    assert report.kept[0] == f"{KEPT_FILES} as of 1970-01-01 00:00:50 UTC"
    assert report.lost[-1] == "changes in /workspace since 1970-01-01 00:00:50 UTC"
    assert KEPT_FILES not in (*report.kept, *report.lost)
    assert with_exported_files(report, 50.0) == report
    later = with_exported_files(report, 55.0)
    assert (len(later.kept), len(later.lost)) == (len(report.kept), len(report.lost))
    error = lost_error(replace(lost, loss=report), may_have_executed=False)
    assert "continue with its files in a new" in error.message


@pytest.mark.parametrize(
    ("on_idle", "cause", "generation", "expected"),
    [
        (OnIdle.HIBERNATE, Cause.INTERVAL, 1, True),
        (OnIdle.HIBERNATE, None, 1, False),
        (OnIdle.END, Cause.INTERVAL, 1, False),
        (OnIdle.END, Cause.HIBERNATION, 1, True),
        (OnIdle.END, Cause.HIBERNATION, 2, False),
    ],
)
def test_which_sessions_have_not_ended(
    on_idle: OnIdle, cause: Cause | None, generation: int, expected: bool
) -> None:
    """``generation``: the lost session's. The export is of the first."""
    meta = None if cause is None else ExportMeta(SNAPSHOT, 1, cause)
    lost = mark_worker_lost(replace(SESSION, on_idle=on_idle, generation=generation), 60.0)
    assert outlives(lost, meta, 99.0)
    assert outlives(lost, meta, 101.0) is expected

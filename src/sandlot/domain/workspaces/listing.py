"""Pages of snapshots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sandlot.domain.paging import begin_of, first_of, merged_pages
from sandlot.domain.workspaces.snapshots import Snapshot, SnapshotPage


def check_listing(after: str | None, limit: int) -> str:
    """Where the page begins. Raises ``InvalidRequest``."""
    return begin_of(after, limit, "snp")


def snapshot_page(in_order: Sequence[Snapshot], limit: int) -> SnapshotPage:
    return SnapshotPage(*first_of(in_order, limit))


def merged(pages: Mapping[str, SnapshotPage | None], limit: int) -> SnapshotPage:
    """The page of a fleet. ``pages``: by worker id, what each answered; None for nothing."""
    answers = {
        worker: None if page is None else (page.snapshots, page.next) for worker, page in pages.items()
    }
    return SnapshotPage(*merged_pages(answers, limit))

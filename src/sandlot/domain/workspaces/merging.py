"""Merges the pages of a fleet's workers into one. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from sandlot.domain.workspaces.listing import place_of
from sandlot.domain.workspaces.snapshots import SnapshotPage


def merged(pages: Mapping[str, SnapshotPage | None], limit: int) -> SnapshotPage:
    """The page of a fleet. ``pages``: by worker id, what each worker answered to the same question; None for
    nothing. Workers that did not answer are named.
    """
    answers = [page for page in pages.values() if page is not None]
    missing = tuple(sorted(worker for worker, page in pages.items() if page is None))
    # Beyond the last one of a worker that has more, others of its may belong between.
    known = min((page.next for page in answers if page.next is not None), default=None)
    in_order = sorted((snapshot for page in answers for snapshot in page.snapshots), key=place_of)
    if known is not None:
        in_order = [snapshot for snapshot in in_order if place_of(snapshot) <= known]
    first = tuple(in_order[:limit])
    if known is None and len(in_order) <= limit:
        return SnapshotPage(first, None, missing)
    return SnapshotPage(first, place_of(first[-1]) if first else known, missing)

"""Pages of snapshots: their order, and where the next page begins."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.workspaces.snapshots import Snapshot, SnapshotPage

_PLACE: Final = re.compile(r"\d{13}\.\d{6}-snp_[0-9a-f]{32}")


def place_of(snapshot: Snapshot) -> str:
    """A snapshot's place in lists, and the cursor of a page that ends with it: by time, then by id."""
    return f"{snapshot.created_at:020.6f}-{snapshot.id}"


def check_place(text: str) -> str:
    if _PLACE.fullmatch(text) is None:
        raise InvalidRequest(
            f"{text!r:.80} is not a page cursor. Pass the 'next' value of the previous page."
        )
    return text


def snapshot_page(in_order: Sequence[Snapshot], limit: int) -> SnapshotPage:
    """The first ``limit`` of these snapshots. There is a next page if there are more."""
    more = len(in_order) > limit
    return SnapshotPage(tuple(in_order[:limit]), place_of(in_order[limit - 1]) if more else None)

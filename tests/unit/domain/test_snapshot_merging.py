"""Pages of a fleet's snapshots: each snapshot once and in order, however few a worker answers with."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sandlot.domain.ids import new_snapshot_id
from sandlot.domain.paging import place_of
from sandlot.domain.workspaces.listing import merged, snapshot_page
from sandlot.domain.workspaces.snapshots import Snapshot, SnapshotPage


def of_worker(times: list[int]) -> list[Snapshot]:
    snapshots = [
        Snapshot(new_snapshot_id("0a1b2c3d"), "ses_1", at / 4, "base", "default") for at in sorted(times)
    ]
    return sorted(snapshots, key=place_of)


FLEETS = st.lists(st.lists(st.integers(0, 20), max_size=12).map(of_worker), min_size=1, max_size=4)


@given(FLEETS, st.integers(1, 9), st.integers(1, 9))
def test_each_once_and_in_order(fleet: list[list[Snapshot]], limit: int, each: int) -> None:
    """``each``: how many a worker answers with."""
    found: list[Snapshot] = []
    after: str | None = None
    for _ in range(100):
        pages: dict[str, SnapshotPage | None] = {
            f"w{number}": snapshot_page(
                [one for one in snapshots if after is None or place_of(one) > after], min(each, limit)
            )
            for number, snapshots in enumerate(fleet)
        }
        page = merged(pages, limit)
        assert len(page.snapshots) <= limit
        assert page.snapshots or page.next is None, "every page goes on"
        found += page.snapshots
        after = page.next
        if after is None:
            break
    assert found == sorted((one for snapshots in fleet for one in snapshots), key=place_of)


def test_those_that_do_not_answer_are_named() -> None:
    [one] = of_worker([3])
    pages = {"w2": None, "w1": SnapshotPage((one,)), "w0": None}
    assert merged(pages, 5) == SnapshotPage((one,), None, ("w0", "w2"))
    assert merged({}, 5) == SnapshotPage(())

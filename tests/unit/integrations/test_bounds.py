"""Output that is cut to a bound, with the line that says what is missing: within the bound, and at its place."""

from __future__ import annotations

import pytest

from sandlot.client.result import marked_bytes
from sandlot.domain.kept_output import Omitted
from sandlot.integrations.deepagents.execution import _fit_marker
from sandlot.integrations.toolbox.commands import MAX_DATA_BYTES, _channel_text


@pytest.mark.parametrize(
    "missing", [1, 9, 95, 99, 970, 999, 1000, 9_990, 99_999, 999_980, 999_999, 10**9 - 1]
)
def test_the_line_fits_into_the_bound(missing: int) -> None:
    output = b"a" * 500 + b"z" * 500
    within = _fit_marker(output, Omitted(500, missing))
    assert len(within) <= len(output)
    head, line, tail = within.decode().split("\n")
    assert (head, tail) == ("a" * 500, "z" * len(tail))
    # What the line took the place of is counted.
    said = int(line.removeprefix("[… ").removesuffix(" bytes left out …]").replace(",", ""))
    assert said == missing + 500 - len(tail)


def test_where_there_is_no_room_for_the_line_nothing_is_changed() -> None:
    assert _fit_marker(b"az", Omitted(1, 7)) == b"az"
    assert _fit_marker(b"az", None) == b"az"


HALF = MAX_DATA_BYTES // 2


@pytest.mark.parametrize(
    "at", [0, 10, HALF, HALF + 10, MAX_DATA_BYTES, 2 * MAX_DATA_BYTES - 10, 2 * MAX_DATA_BYTES]
)
def test_data_is_cut_where_something_was_missing(at: int) -> None:
    """All before it is "a", all behind it "z"; an end with both would have a gap that nobody marks."""
    data = b"a" * at + b"z" * (2 * MAX_DATA_BYTES - at)
    head, tail = b"a" * min(at, HALF), b"z" * min(len(data) - at, HALF)
    missing = Omitted(len(head), 7 + len(data) - len(head) - len(tail))
    assert _channel_text(data, Omitted(at, 7)) == marked_bytes(head + tail, missing).decode()


def test_data_without_a_gap_has_both_ends() -> None:
    data = b"a" * MAX_DATA_BYTES + b"z"
    assert _channel_text(data[:MAX_DATA_BYTES], None) == "a" * MAX_DATA_BYTES
    assert _channel_text(data, None) == marked_bytes(data[:HALF] + data[-HALF:], Omitted(HALF, 1)).decode()

"""What a cell's lines become, whatever a sandbox writes: values, updates, gaps, bounds."""

from __future__ import annotations

import base64
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sandlot.domain.code import result as results
from sandlot.domain.code.events import (
    CellCleared,
    CellCount,
    CellData,
    CellError,
    CellEvent,
    CellText,
    EventLines,
    event_body,
    parse,
)
from sandlot.domain.code.result import CellFold, CellOutcome, Value, read_cell
from sandlot.domain.kept_output import Omitted

PNG = b"\x89PNG\r\n\x1a\n..."


def written(*events: CellEvent) -> bytes:
    return b"".join(json.dumps(event_body(event)).encode() + b"\n" for event in events)


def outcome(*events: CellEvent) -> CellOutcome:
    return read_cell(written(*events))


def texts(found: CellOutcome) -> list[str | None]:
    return [value.text for value in found.values]


def shown(text: str, **rest: Any) -> CellData:
    return CellData({"text/plain": text}, **rest)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
_EVENTS = st.one_of(
    st.builds(CellText, st.sampled_from(["stdout", "stderr"]), st.text()),
    st.builds(
        CellData,
        st.dictionaries(st.sampled_from(["text/plain", "image/png"]), st.text())
        | st.dictionaries(st.sampled_from(["application/json", "e2b/data", "e2b/chart"]), _JSON),
        main=st.booleans(),
        display_id=st.none() | st.text(),
        update=st.booleans(),
        metadata=st.dictionaries(st.text(), _JSON, max_size=2),
    ),
    st.builds(CellError, st.text(), st.text(), st.lists(st.text()).map(tuple)),
    st.builds(CellCount, st.integers()),
    st.builds(CellCleared, st.booleans()),
)


@given(_EVENTS)
def test_an_event_is_read_as_it_was_written(event: CellEvent) -> None:
    assert parse(json.dumps(event_body(event))) == event


@given(st.lists(_EVENTS, max_size=6), st.data())
def test_lines_may_arrive_in_any_pieces(events: list[CellEvent], data: st.DataObject) -> None:
    whole = written(*events)
    lines, found = EventLines(), []
    at = 0
    while at < len(whole):
        size = data.draw(st.integers(1, len(whole) - at))
        found += lines.feed(whole[at : at + size])
        at += size
    assert found == events


@given(st.binary(max_size=300))
def test_any_bytes_can_be_read(data: bytes) -> None:
    read_cell(data + b"\n")


def test_forms_of_a_value() -> None:
    value = Value(
        {
            "text/plain": "plain",
            "text/html": "<b>",
            "text/markdown": "**",
            "text/latex": "$x$",
            "image/svg+xml": "<svg/>",
            "image/png": base64.b64encode(PNG).decode(),
            "image/jpeg": "not base64!",
            "application/json": {"a": [1]},
            "application/vnd.vegalite.v5+json": {"mark": "bar"},
            "application/vnd.plotly.v1+json": {"data": []},
        },
        main=True,
    )
    assert (value.text, value.html, value.markdown, value.latex) == ("plain", "<b>", "**", "$x$")
    assert (value.svg, value.png, value.json) == ("<svg/>", PNG, {"a": [1]})
    assert (value.vega, value.plotly) == ({"mark": "bar"}, {"data": []})
    assert value.pictures.get("image/png") == PNG
    assert value._repr_mimebundle_() == (dict(value.data), {})
    assert Value({"image/png": "\ud800"}).png is None
    assert Value({}).text is None


def test_an_update_replaces_what_it_names() -> None:
    found = outcome(
        shown("0 %", display_id="bar"),
        shown("other"),
        shown("50 %", display_id="bar", update=True),
        shown("100 %", display_id="bar", update=True),
        shown("of an earlier cell", display_id="unknown", update=True),
    )
    assert texts(found) == ["100 %", "other", "of an earlier cell"]


def test_clearing() -> None:
    assert texts(outcome(shown("a"), CellCleared(), shown("b"))) == ["b"]
    assert texts(outcome(shown("a"), CellCleared(wait=True))) == ["a"]
    assert texts(outcome(shown("a"), CellCleared(wait=True), shown("b"), shown("c"))) == ["b", "c"]


def test_text_errors_and_counts() -> None:
    found = outcome(
        CellText("stdout", "a"),
        CellText("stderr", "b"),
        CellText("stdout", "c"),
        CellCount(7),
        CellError("ValueError", "no", ("\x1b[31mValueError\x1b[0m: no", "line 1")),
    )
    assert (found.stdout, found.stderr, found.execution_count) == ("ac", "b", 7)
    assert found.error is not None
    assert (found.error.name, found.error.traceback) == ("ValueError", "ValueError: no\nline 1")
    assert str(found.error) == "ValueError: no"


def test_a_gap_costs_only_the_lines_that_it_cuts() -> None:
    whole = written(*(CellText("stdout", f"{number:03} ") for number in range(100)))
    for begin, end in ((150, 900), (0, 33), (10, 11), (len(whole) - 5, len(whole))):
        kept = whole[:begin] + whole[end:]
        found = read_cell(kept, Omitted(begin, end - begin)).stdout.split()
        lost = {whole[:at].count(b"\n") for at in range(begin, end)}
        assert found == [f"{number:03}" for number in range(100) if number not in lost]


def test_a_loop_that_displays_is_bounded() -> None:
    fold = CellFold()
    for number in range(results.MAX_VALUES + 5):
        fold.add(shown(str(number)))
    found = fold.outcome()
    assert (len(found.values), found.incomplete) == (results.MAX_VALUES, True)
    assert not outcome(shown("one")).incomplete

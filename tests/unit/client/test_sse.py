"""Server-sent events, however the bytes are cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.client.http.streams.sse import EventParser, ServerEvent
from sandlot.domain.errors import TooLarge


def reference(stream: str) -> list[ServerEvent]:
    """The standard's algorithm on the whole text, as plainly as it can be written."""
    events, name, data = [], "", []
    lines = stream.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for line in lines[:-1]:
        if not line:
            if data:
                events.append(ServerEvent(name or "message", "\n".join(data).encode()))
            name, data = "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
    return events


line = st.one_of(
    st.sampled_from(
        ["", "data", "data:", "data: ", "event: output", "event:", ": ping", ":", "id: 7", "retry: 1"]
    ),
    st.text(st.characters(codec="utf-8", exclude_characters="\r\n\ufeff"), max_size=12),
    st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=12).map("data: ".__add__),
)
stream = st.lists(st.tuples(line, st.sampled_from(["\n", "\r\n", "\r"]))).map(
    lambda lines: "".join(text + end for text, end in lines)
)


@given(st.data(), stream, st.sampled_from(["", "\ufeff"]))
def test_any_chunking_gives_the_same_events(data: st.DataObject, text: str, mark: str) -> None:
    raw = (mark + text).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=20)))
    chunks = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    parser = EventParser()
    assert [event for chunk in chunks for event in parser.feed(chunk)] == reference(mark + text)


def test_an_event_without_end_is_not_given() -> None:
    assert EventParser().feed(b"event: output\ndata: {}\n") == []


def test_an_event_is_bounded() -> None:
    parser = EventParser(max_event_bytes=100)
    assert parser.feed(b": ping\n\n" * 1000) == []
    for piece in (b"x" * 60, b"y" * 30):
        parser.feed(piece)
    with pytest.raises(TooLarge):
        parser.feed(b"z" * 20)
    parser = EventParser(max_event_bytes=100)
    with pytest.raises(TooLarge):
        parser.feed(b"data: 12345\n" * 20)

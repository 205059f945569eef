"""The codec against the golden frames that the agent reads too, and against anything at all."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandlot.wire import frames
from sandlot.wire.frames import Frame, FrameDecoder, Kind, ProtocolViolation

GOLDEN = json.loads((Path(__file__).parents[3] / "agent" / "testdata" / "golden.json").read_text())


def encoded(frame: Frame) -> bytes:
    if frame.kind is Kind.DATA:
        return frames.encode_data(frame.stream, frame.channel, frame.offset, frame.body)
    return frames.encode(frame.kind, frame.stream, frame.body)


@pytest.mark.parametrize("golden", GOLDEN["valid"], ids=lambda golden: golden["name"])
def test_golden_frame_is_read_and_written_alike(golden: dict) -> None:
    (frame,) = FrameDecoder().feed(bytes.fromhex(golden["hex"]))
    assert (frame.stream, int(frame.kind)) == (golden["stream"], golden["kind"])
    assert encoded(frame).hex() == golden["hex"]
    assert (
        frames.encode(frame.kind, frame.stream, bytes.fromhex(golden["payload_hex"])).hex() == golden["hex"]
    )


def test_golden_frames_cover_every_kind() -> None:
    assert {golden["kind"] for golden in GOLDEN["valid"]} == {int(kind) for kind in Kind}


@pytest.mark.parametrize("golden", GOLDEN["invalid"], ids=lambda golden: golden["name"])
def test_golden_mistake_is_seen(golden: dict) -> None:
    with pytest.raises(ProtocolViolation):
        list(FrameDecoder().feed(bytes.fromhex(golden["hex"])))


@pytest.mark.parametrize("golden", GOLDEN["invalid"], ids=lambda golden: golden["name"])
def test_golden_mistake_is_seen_byte_by_byte(golden: dict) -> None:
    decoder = FrameDecoder()
    wire = bytes.fromhex(golden["hex"])
    with pytest.raises(ProtocolViolation):
        [frame for at in range(len(wire)) for frame in decoder.feed(wire[at : at + 1])]
    with pytest.raises(ProtocolViolation):  # and is not got over
        list(decoder.feed(bytes.fromhex(GOLDEN["valid"][0]["hex"])))


STREAMS = st.integers(1, 2**32 - 1)
NO_HEAD = (st.just(0), st.just(0))
JSON_BODIES = st.binary(max_size=300) | st.just(bytes(frames.MAX_PAYLOAD_BYTES))
DATA_BODIES = st.binary(max_size=300) | st.integers(0, frames.MAX_DATA_BYTES).map(bytes)
REQUESTS = st.sampled_from([Kind.OPEN, Kind.PART, Kind.MESSAGE, Kind.RESET])
FRAMES = st.one_of(
    st.builds(Frame, STREAMS, REQUESTS, JSON_BODIES, *NO_HEAD),
    st.builds(
        Frame, STREAMS, st.just(Kind.DATA), DATA_BODIES, st.integers(0, 255), st.integers(0, 2**64 - 1)
    ),
    st.builds(Frame, STREAMS, st.just(Kind.CREDIT), st.binary(min_size=4, max_size=4), *NO_HEAD),
    st.builds(Frame, STREAMS, st.just(Kind.END), st.just(b""), *NO_HEAD),
    st.builds(
        Frame,
        st.just(0),
        st.sampled_from([Kind.PING, Kind.PONG]),
        st.binary(min_size=8, max_size=8),
        *NO_HEAD,
    ),
    st.builds(Frame, st.just(0), st.sampled_from([Kind.HELLO, Kind.READY]), JSON_BODIES, *NO_HEAD),
)


@settings(deadline=None)  # a loaded machine is not a failure
@given(st.lists(FRAMES, max_size=8), st.data())
def test_frames_survive_any_cut(sent: list[Frame], data: st.DataObject) -> None:
    wire = b"".join(encoded(frame) for frame in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=12)))
    decoder = FrameDecoder()
    received = []
    for start, stop in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        received += decoder.feed(wire[start:stop])
    assert received == sent


@settings(deadline=None)  # a loaded machine is not a failure
@given(st.lists(st.binary(max_size=200), max_size=6))
def test_arbitrary_bytes_raise_nothing_else(chunks: list[bytes]) -> None:
    decoder = FrameDecoder()
    try:
        for chunk in chunks:
            list(decoder.feed(chunk))
    except ProtocolViolation:
        pass


def test_many_bytes_in_a_row_stay_within_the_buffer() -> None:
    frame = frames.encode_data(1, 1, 0, bytes(frames.MAX_DATA_BYTES))
    decoder = FrameDecoder()
    assert sum(len(got.body) for got in decoder.feed(frame * 40)) == 40 * frames.MAX_DATA_BYTES
    assert len(decoder.free()) >= frames.MAX_PAYLOAD_BYTES


def test_large_request_leaves_in_parts() -> None:
    payload = bytes(3 * frames.MAX_PAYLOAD_BYTES + 1)
    got = list(FrameDecoder().feed(frames.encode_request(7, payload)))
    assert [frame.kind for frame in got] == [Kind.PART] * 3 + [Kind.OPEN]
    assert b"".join(frame.body for frame in got) == payload
    with pytest.raises(ValueError, match="too large"):
        frames.encode_request(7, bytes(frames.MAX_REQUEST_BYTES + 1))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"1",
        b"null",
        b"{}{}",
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b"\xff{}",
        b"\xef\xbb\xbf{}",
        b'{"a":' * 10_000,
        b"[" * 65_536,
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"a":"' + bytes(65_536) + b'"}',
    ],
    ids=lambda payload: repr(payload[:12]),
)
def test_what_is_not_one_object_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        frames.parse_object(payload)


@settings(deadline=None)  # a loaded machine is not a failure
@given(st.binary(max_size=100))
def test_parse_object_raises_nothing_else(payload: bytes) -> None:
    with contextlib.suppress(ProtocolViolation):
        assert isinstance(frames.parse_object(payload), dict)

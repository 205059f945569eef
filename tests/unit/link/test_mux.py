"""Streams on one link: credit both ways, ends, resets, and no stream in another's way."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from sandlot.domain.errors import Busy, InvalidRequest
from sandlot.providers.link import mux as mux_module
from sandlot.providers.link.stream import (
    GRANT_BYTES,
    WINDOW_BYTES,
    Data,
    LinkClosed,
    Message,
    StreamReset,
)
from sandlot.testing.eventually import eventually
from sandlot.wire.frames import DATA_HEAD_BYTES, Kind, encode, encode_credit, encode_u64, read_u32


async def test_request_and_end_leave_in_one_write(scene) -> None:
    peer = await scene.core()
    stream = await (await scene.link.core()).open({"op": "x"})
    first = await peer.frame()
    assert (first.kind, first.stream, first.body) == (Kind.OPEN, stream.id, b'{"op":"x"}')
    assert peer._frames, "END came with it"
    assert (await peer.frame()).kind is Kind.END
    second = await (await scene.link.core()).open({"op": "y"})
    assert (stream.id, second.id) == (1, 3)


async def test_large_request_is_sent_in_parts(scene) -> None:
    peer = await scene.core()
    mux = await scene.link.core()
    opening = asyncio.create_task(mux.open({"op": "x", "fill": "y" * 3_000_000}))
    _, request = await peer.request()
    assert len(request["fill"]) == 3_000_000
    await opening
    with pytest.raises(InvalidRequest):
        await mux.open({"op": "x", "fill": "y" * 5_000_000})
    with pytest.raises(InvalidRequest):
        await mux.open({"op": "\ud800"})


async def test_items_come_in_order_then_none(scene) -> None:
    peer = await scene.core()
    stream = await (await scene.link.core()).open({"op": "x"})
    peer.message(stream.id, {"a": 1})
    peer.data(stream.id, b"abc", channel=1, offset=5)
    peer.end(stream.id)
    assert await stream.receive() == Message({"a": 1}, 7)
    assert await stream.receive() == Data(1, 5, b"abc")
    assert await stream.receive() is None
    assert await stream.receive() is None
    assert (await scene.link.core())._streams == {}


async def test_reset_is_told_after_what_came_before(scene) -> None:
    peer = await scene.core()
    stream = await (await scene.link.core()).open({"op": "x"}, end=False)
    peer.data(stream.id, b"abc")
    peer.reset(stream.id, "no_space")
    assert isinstance(await stream.receive(), Data)
    with pytest.raises(StreamReset) as caught:
        await stream.receive()
    assert (caught.value.code, caught.value.message) == ("no_space", "said no_space")
    with pytest.raises(StreamReset):
        await stream.send_data(b"x")
    peer.data(stream.id, b"was under way")  # ignored
    peer.raw(encode_u64(Kind.PING, 9))
    assert (await peer.until(Kind.PONG)).body == (9).to_bytes(8, "big")


async def test_sender_stops_at_its_credit(scene) -> None:
    peer = await scene.core()
    stream = await (await scene.link.core()).open({"op": "x"}, end=False)
    content = bytes(range(256)) * 4096
    sending = asyncio.create_task(stream.send_data(content))
    got, spent = b"", 0
    while spent < WINDOW_BYTES - DATA_HEAD_BYTES:
        frame = await peer.until(Kind.DATA)
        assert frame.offset == len(got)
        got += frame.body
        spent += DATA_HEAD_BYTES + len(frame.body)
    assert spent <= WINDOW_BYTES
    await asyncio.sleep(0.01)
    assert not sending.done()
    peer.raw(encode_credit(stream.id, 2 * len(content)))
    while len(got) < len(content):
        got += (await peer.until(Kind.DATA)).body
    await sending
    assert got == content


async def test_credit_is_given_back_when_half_is_consumed(scene) -> None:
    peer = await scene.core()
    stream = await (await scene.link.core()).open({"op": "x"})
    piece = bytes(GRANT_BYTES // 4 - DATA_HEAD_BYTES)
    for turn in range(12):  # three windows' worth
        peer.data(stream.id, piece, offset=turn * len(piece))
        assert isinstance(await stream.receive(), Data)
        if turn % 4 == 3:
            assert read_u32((await peer.until(Kind.CREDIT)).body) == GRANT_BYTES


async def test_overrun_breaks_the_link(scene) -> None:
    peer = await scene.core()
    mux = await scene.link.core()
    stream = await mux.open({"op": "x"})
    for _ in range(5):
        peer.data(stream.id, bytes(65_000))
    await peer.eof()
    assert mux.closed is not None
    assert mux.closed.violation is not None
    for _ in range(4):  # what was within credit is still there
        assert isinstance(await stream.receive(), Data)
    with pytest.raises(LinkClosed):
        await stream.receive()


async def test_slow_reader_does_not_stall_another_stream(scene) -> None:
    peer = await scene.core()
    mux = await scene.link.core()
    slow = await mux.open({"op": "slow"})
    quick = await mux.open({"op": "quick"})
    for _ in range(4):
        peer.data(slow.id, bytes(65_000))  # nobody reads it
    for _ in range(20):
        peer.message(quick.id, {"n": 1})
        assert isinstance(await asyncio.wait_for(quick.receive(), 5), Message)
    # and outgoing: a stream without credit does not hold up one that has it
    full = await mux.open({"op": "full"}, end=False)
    sending = asyncio.create_task(full.send_data(bytes(WINDOW_BYTES)))
    other = await mux.open({"op": "other"}, end=False)
    await asyncio.wait_for(other.send_data(b"through"), 5)
    while (frame := await peer.until(Kind.DATA)).stream != other.id:
        pass
    assert frame.body == b"through"
    sending.cancel()


async def test_agent_that_does_not_read_stops_senders(scene) -> None:
    await scene.core()
    mux = await scene.link.core()
    streams = [await mux.open({"op": "x"}, end=False) for _ in range(40)]
    sending = [asyncio.create_task(stream.send_data(bytes(WINDOW_BYTES // 2))) for stream in streams]
    await eventually(lambda: not mux.writable)
    assert mux._connection._transport.get_write_buffer_size() < 1024 * 1024
    for task in sending:
        task.cancel()


async def test_agent_that_asks_and_does_not_read_is_hung_up_on(scene, monkeypatch) -> None:
    monkeypatch.setattr("sandlot.providers.link.connection.MAX_UNSENT_BYTES", 100_000)
    monkeypatch.setattr(mux_module, "NEEDLESS_BURST", 10**9)  # each is answered, until nobody reads it
    peer = await scene.core()
    mux = await scene.link.core()
    ping = encode_u64(Kind.PING, 1) * 10_000
    with contextlib.suppress(ConnectionError):
        while mux.closed is None:
            peer.raw(ping)
            await peer.drain()
    await asyncio.sleep(0)
    assert mux.closed is not None
    assert mux.closed.violation is None


async def test_letting_go_resets(scene) -> None:
    peer = await scene.core()
    mux = await scene.link.core()
    stream = await mux.open({"op": "x"})
    stream.close()
    stream.close()
    frame = await peer.until(Kind.RESET)
    assert frame.stream == stream.id
    assert mux._streams == {}
    with pytest.raises(StreamReset):
        await stream.receive()


async def test_end_of_the_agent_ends_a_stream_that_is_not_half_closed(scene) -> None:
    peer = await scene.core()
    mux = await scene.link.core()
    stream = await mux.open({"op": "x"}, end=False)
    sending = asyncio.create_task(stream.send_data(bytes(2 * WINDOW_BYTES)))
    await peer.until(Kind.DATA)
    peer.end(stream.id)
    with pytest.raises(StreamReset):
        await sending
    assert (await peer.until(Kind.END)).stream == stream.id
    assert await stream.receive() is None
    assert mux._streams == {}


async def test_half_closed_stream_still_sends(scene) -> None:
    peer = await scene.core()
    mux = await scene.link.core()
    stream = await mux.open({"op": "x"}, end=False, half_close=True)
    peer.end(stream.id)
    assert await stream.receive() is None
    await stream.send_data(b"more")
    assert (await peer.until(Kind.DATA)).body == b"more"
    stream.send_end()
    assert mux._streams == {}


async def test_broken_link_ends_every_stream(scene) -> None:
    peer = await scene.core()
    mux = await scene.link.core()
    reading = asyncio.create_task((await mux.open({"op": "x"})).receive())
    sending = asyncio.create_task((await mux.open({"op": "y"}, end=False)).send_data(bytes(10**6)))
    await peer.until(Kind.DATA)
    peer.close()
    for task in (reading, sending):
        with pytest.raises(LinkClosed) as caught:
            await task
        assert caught.value.violation is None
    with pytest.raises(LinkClosed):
        await mux.open({"op": "z"})


async def test_too_many_streams_are_busy(scene, monkeypatch) -> None:
    monkeypatch.setattr("sandlot.providers.link.link.LIMITS", mux_module.MuxLimits(streams=2))
    peer = await scene.core()
    mux = await scene.link.core()
    held = [await mux.open({"op": "x"}) for _ in range(2)]
    with pytest.raises(Busy):
        await mux.open({"op": "x"})
    peer.json(Kind.OPEN, 2, {"op": "port.accepted"})
    frame = await peer.until(Kind.RESET)
    assert frame.stream == 2
    assert b'"busy"' in frame.body
    held[0].close()
    await mux.open({"op": "x"})


async def test_agents_streams_are_refused_by_default(scene) -> None:
    peer = await scene.core()
    peer.json(Kind.OPEN, 2, {"op": "whatever"})
    assert b'"unsupported"' in (await peer.until(Kind.RESET)).body


async def test_silent_agent_is_hung_up_on(scene, monkeypatch) -> None:
    monkeypatch.setattr(mux_module, "PING_INTERVAL_S", 0.01)
    peer = await scene.core()
    mux = await scene.link.core()
    for _ in range(4):
        ping = await peer.until(Kind.PING)
        peer.raw(encode(Kind.PONG, 0, ping.body))
    assert mux.closed is None
    await peer.until(Kind.PING)
    await asyncio.wait_for(peer.eof(), 5)
    assert mux.closed.violation is None


@pytest.mark.parametrize(
    "broken",
    [
        lambda peer, stream: peer.data(99, b"x"),
        lambda peer, stream: peer.data(4, b"x"),
        lambda peer, stream: peer.json(Kind.OPEN, 5, {"op": "x"}),
        lambda peer, stream: (peer.json(Kind.OPEN, 4, {}), peer.json(Kind.OPEN, 2, {})),
        lambda peer, stream: (peer.json(Kind.OPEN, 2, {}), peer.json(Kind.OPEN, 2, {})),
        lambda peer, stream: (peer.raw(encode(Kind.PART, 2, b"{")), peer.raw(encode_u64(Kind.PING, 1))),
        lambda peer, stream: peer.raw(encode(Kind.PART, 2, bytes(65_536)) * 65),
        lambda peer, stream: peer.raw(encode(Kind.OPEN, 2, b"nonsense")),
        lambda peer, stream: (peer.end(stream), peer.end(stream)),
        lambda peer, stream: (peer.end(stream), peer.data(stream, b"x")),
        lambda peer, stream: peer.raw(encode_credit(stream, 2**31)),
        lambda peer, stream: peer.raw(encode(Kind.MESSAGE, stream, b"")),
        lambda peer, stream: peer.raw(encode(Kind.RESET, stream, b"{}")),
        lambda peer, stream: peer.json(Kind.HELLO, 0, {}),
        lambda peer, stream: peer.json(Kind.WELCOME, 0, {}),
        lambda peer, stream: peer.raw(b"\xff" * 9),
    ],
)
async def test_broken_rule_closes_the_link(scene, broken) -> None:
    peer = await scene.core()
    mux = await scene.link.core()
    stream = await mux.open({"op": "x"}, end=False, half_close=True)
    await peer.request()
    broken(peer, stream.id)
    await asyncio.wait_for(peer.eof(), 5)
    assert mux.closed.violation is not None


async def test_message_that_is_not_json_closes_the_link_when_it_is_read(scene) -> None:
    peer = await scene.core()
    mux = await scene.link.core()
    stream = await mux.open({"op": "x"})
    peer.raw(encode(Kind.MESSAGE, stream.id, b"[" * 60_000))
    with pytest.raises(LinkClosed) as caught:
        await stream.receive()
    assert caught.value.violation is not None

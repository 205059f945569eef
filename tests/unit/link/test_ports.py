"""Connections into the sandbox, and how they end."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.domain.errors import Busy, InvalidRequest, LinkInterrupted, NotFound
from sandlot.providers.link import mux as mux_module
from sandlot.providers.link import ports
from sandlot.wire.frames import MAX_DATA_BYTES, Kind

CONNECT = {"op": "port.connect", "network": "tcp", "address": "127.0.0.1:80"}


async def connected(scene, core=None) -> tuple:
    connecting = asyncio.create_task(scene.agent.connect("127.0.0.1:80"))
    helper = await scene.net(core or await scene.core())
    number, request = await helper.request()
    assert request == CONNECT
    helper.message(number, {"connected": True})
    return helper, number, await connecting


async def test_connection_carries_bytes_both_ways(scene) -> None:
    helper, number, stream = await connected(scene)
    await stream.send(b"GET")
    assert (await helper.until(Kind.DATA)).body == b"GET"
    helper.data(number, b"200", offset=0)
    helper.data(number, b"", offset=3)
    helper.data(number, b"OK", offset=3)
    helper.end(number)
    assert [await stream.receive() for _ in range(3)] == [b"200", b"OK", b""]
    await stream.send(b"still open")
    assert (await helper.until(Kind.DATA)).offset == 3
    await stream.send_end()
    await helper.until(Kind.END)
    assert (await scene.link.net())._streams == {}


async def test_older_agent_connects_on_its_files_link(scene) -> None:
    core = await scene.core(protocol=[1, 1])
    connecting = asyncio.create_task(scene.agent.connect("127.0.0.1:80"))
    helper = await scene.files(core)
    number, request = await helper.request()
    assert request == CONNECT
    helper.message(number, {"connected": True})
    (await connecting).abort()


async def test_refused_connection(scene) -> None:
    core = await scene.core()
    connecting = asyncio.create_task(scene.agent.connect("127.0.0.1:81"))
    helper = await scene.net(core)
    number, _ = await helper.request()
    helper.reset(number, "refused")
    with pytest.raises(NotFound):
        await connecting
    with pytest.raises(InvalidRequest):
        await scene.agent.connect("x", network="udp")


async def test_aborted_connection_is_reset(scene) -> None:
    helper, number, stream = await connected(scene)
    stream.abort()
    assert (await helper.until(Kind.RESET)).stream == number
    stream.abort()
    await stream.close()


async def test_closed_connection_ends_when_the_other_side_has_all(scene) -> None:
    helper, number, stream = await connected(scene)
    await stream.send(b"the last bytes")
    closing = asyncio.create_task(stream.close())
    await helper.until(Kind.END)
    helper.data(number, b"what nobody reads any more")
    helper.end(number)
    await closing
    assert (await scene.link.net())._streams == {}
    helper.raw(b"")  # a RESET would have come before the answer to this
    asking = asyncio.create_task(scene.agent.connect("127.0.0.1:80"))
    while (frame := await helper.frame()).kind is not Kind.OPEN:
        assert frame.kind is not Kind.RESET
    helper.reset(frame.stream, "refused")
    with pytest.raises(NotFound):
        await asking


async def test_closed_connection_waits_only_so_long(scene) -> None:
    helper, number, stream = await connected(scene)
    await stream.close(within_s=0.02)
    assert (await helper.until(Kind.END)).stream == number
    assert (await helper.until(Kind.RESET)).stream == number


async def test_connection_is_not_open_for_ever(scene, monkeypatch) -> None:
    monkeypatch.setattr(ports, "MAX_OPEN_S", 0.02)
    helper, number, stream = await connected(scene)
    assert (await helper.until(Kind.RESET)).stream == number
    with pytest.raises(LinkInterrupted, match="longest allowed"):
        await stream.receive()


async def test_bytes_that_nobody_reads_are_bounded(scene, monkeypatch) -> None:
    """Over all connections of a sandbox. One that is read goes on."""
    monkeypatch.setattr("sandlot.providers.link.link.NET_LIMITS", mux_module.MuxLimits(unread_bytes=100_000))
    core = await scene.core()
    helper, first, reading = await connected(scene, core)
    connecting = asyncio.create_task(scene.agent.connect("127.0.0.1:80"))
    second, _ = await helper.request()
    helper.message(second, {"connected": True})
    unread = await connecting
    piece = bytes(MAX_DATA_BYTES)
    offset = 0
    for _ in range(3):  # more than the limit in all, but never at once
        helper.data(first, piece, offset=offset)
        assert await reading.receive() == piece
        offset += len(piece)
    helper.data(second, piece)
    helper.data(second, piece, offset=len(piece))
    refused = await helper.until(Kind.RESET)
    assert refused.stream == second
    assert b'"busy"' in refused.body
    with pytest.raises(Busy):
        await unread.receive()
    helper.data(first, piece, offset=offset)
    assert await reading.receive() == piece
    assert (await scene.link.net())._unread_bytes == 0
    reading.abort()
    unread.abort()


async def test_connections_are_bounded(scene, monkeypatch) -> None:
    monkeypatch.setattr("sandlot.providers.link.link.NET_LIMITS", mux_module.MuxLimits(streams=1))
    _, _, stream = await connected(scene)
    with pytest.raises(Busy):
        await scene.agent.connect("127.0.0.1:80")
    stream.abort()


async def test_message_on_a_connection_breaks_the_rules(scene) -> None:
    helper, number, stream = await connected(scene)
    helper.message(number, {"not": "bytes"})
    with pytest.raises(LinkInterrupted):
        await stream.receive()
    await helper.eof()
    stream.abort()

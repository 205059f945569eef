"""Connections into the sandbox, and out of it to a listener of ours."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.domain.errors import InvalidRequest, LinkInterrupted, NotFound, SandboxQuarantined
from sandlot.providers.link import ports
from sandlot.wire.frames import Kind


async def connected(scene, core) -> tuple:
    connecting = asyncio.create_task(scene.agent.connect("127.0.0.1:80"))
    helper = await scene.files(core)
    number, request = await helper.request()
    assert request == {"op": "port.connect", "network": "tcp", "address": "127.0.0.1:80"}
    helper.message(number, {"connected": True})
    return helper, number, await connecting


async def test_connection_carries_bytes_both_ways(scene) -> None:
    helper, number, stream = await connected(scene, await scene.core())
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
    assert (await scene.link.files())._streams == {}


async def test_refused_connection(scene) -> None:
    core = await scene.core()
    connecting = asyncio.create_task(scene.agent.connect("127.0.0.1:81"))
    helper = await scene.files(core)
    number, _ = await helper.request()
    helper.reset(number, "refused")
    with pytest.raises(NotFound):
        await connecting
    with pytest.raises(InvalidRequest):
        await scene.agent.connect("x", network="udp")


async def test_closed_connection_is_reset(scene) -> None:
    helper, number, stream = await connected(scene, await scene.core())
    await stream.close()
    assert (await helper.until(Kind.RESET)).stream == number


async def listening(scene, core) -> tuple:
    starting = asyncio.create_task(scene.agent.listen("127.0.0.1:0"))
    number, _ = await core.request()
    core.message(number, {"address": "127.0.0.1:3128"})
    # A connection right behind the answer must not be missed.
    core.json(Kind.OPEN, 2, {"op": "port.accepted", "listener": number, "peer": "p"})
    return number, await starting


async def test_listener_hands_out_connections(scene) -> None:
    core = await scene.core()
    number, listener = await listening(scene, core)
    assert listener.address == "127.0.0.1:3128"
    connections = listener.connections()
    first = await anext(connections)
    core.data(2, b"hello")
    assert await first.receive() == b"hello"
    await first.send(b"world")
    assert (await core.until(Kind.DATA)).body == b"world"
    waiting = asyncio.create_task(anext(connections))
    await asyncio.sleep(0)
    core.json(Kind.OPEN, 4, {"op": "port.accepted", "listener": number, "peer": "p"})
    await waiting
    await listener.close()
    assert (await core.until(Kind.RESET)).stream == number
    assert [item async for item in connections] == []
    core.json(Kind.OPEN, 6, {"op": "port.accepted", "listener": number, "peer": "p"})
    assert b'"gone"' in (await core.until(Kind.RESET)).body


async def test_agent_ends_the_listener(scene) -> None:
    core = await scene.core()
    number, listener = await listening(scene, core)
    core.end(number)
    assert len([item async for item in listener.connections()]) == 1


async def test_link_breaks_under_the_listener(scene) -> None:
    core = await scene.core()
    _, listener = await listening(scene, core)
    connections = listener.connections()
    await anext(connections)
    core.close()
    with pytest.raises(LinkInterrupted):
        await anext(connections)


async def test_connections_that_nobody_takes_are_bounded(scene, monkeypatch) -> None:
    monkeypatch.setattr(ports, "MAX_BACKLOG", 3)
    core = await scene.core()
    number, listener = await listening(scene, core)
    for stream in (4, 6, 8):
        core.json(Kind.OPEN, stream, {"op": "port.accepted", "listener": number, "peer": "p"})
    refused = await core.until(Kind.RESET)
    assert refused.stream == 8
    assert b'"busy"' in refused.body
    await listener.close()
    assert (await scene.link.core())._streams == {}


@pytest.mark.parametrize("listener", [None, "1", -1, True], ids=repr)
async def test_broken_offer_quarantines(scene, listener) -> None:
    core = await scene.core()
    await listening(scene, core)
    core.json(Kind.OPEN, 4, {"op": "port.accepted", "listener": listener})
    await core.eof()
    with pytest.raises(SandboxQuarantined):
        await scene.agent.health()


async def test_message_on_a_connection_breaks_the_rules(scene) -> None:
    helper, number, stream = await connected(scene, await scene.core())
    helper.message(number, {"not": "bytes"})
    with pytest.raises(LinkInterrupted):
        await stream.receive()
    await helper.eof()

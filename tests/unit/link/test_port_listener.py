"""Listeners inside: they hand out connections, and outlive their links."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.domain.errors import (
    Conflict,
    InvalidRequest,
    LinkInterrupted,
    NotFound,
    SandboxLost,
    SandboxQuarantined,
)
from sandlot.providers.link import helper_link, port_listener
from sandlot.wire.frames import Kind

ADDRESS = "127.0.0.1:3128"


def come(peer, stream: int, listener: object) -> None:
    peer.json(Kind.OPEN, stream, {"op": "port.accepted", "listener": listener, "peer": "p"})


async def answer(peer, asked: str = ADDRESS) -> int:
    number, request = await peer.request()
    assert request == {"op": "port.listen", "address": asked}
    peer.message(number, {"address": ADDRESS})
    return number


async def listening(scene, core) -> tuple:
    starting = asyncio.create_task(scene.agent.listen("127.0.0.1:0"))
    net = await scene.net(core)
    number = await answer(net, "127.0.0.1:0")
    come(net, 2, number)  # a connection right behind the answer must not be missed
    return net, number, await starting


async def test_listener_hands_out_connections(scene) -> None:
    net, number, listener = await listening(scene, await scene.core())
    assert listener.address == ADDRESS
    connections = listener.connections()
    first = await anext(connections)
    net.data(2, b"hello")
    assert await first.receive() == b"hello"
    await first.send(b"world")
    assert (await net.until(Kind.DATA)).body == b"world"
    waiting = asyncio.create_task(anext(connections))
    await asyncio.sleep(0)
    come(net, 4, number)
    (await waiting).abort()
    await listener.close()
    while (await net.until(Kind.RESET)).stream != number:
        pass
    assert [item async for item in connections] == []
    come(net, 6, number)
    assert b'"gone"' in (await net.until(Kind.RESET)).body
    first.abort()


async def test_agent_ends_the_listener(scene) -> None:
    net, number, listener = await listening(scene, await scene.core())
    net.end(number)
    streams = [item async for item in listener.connections()]
    assert len(streams) == 1
    streams[0].abort()


async def test_listener_goes_on_when_its_link_breaks(scene) -> None:
    core = await scene.core()
    net, _, listener = await listening(scene, core)
    connections = listener.connections()
    broken = await anext(connections)
    waiting = asyncio.create_task(anext(connections))
    for _ in range(3):
        net.close()
        net = await scene.net(core)
        number = await answer(net)
        come(net, 2, number)
        (await waiting).abort()
        waiting = asyncio.create_task(anext(connections))
    with pytest.raises(LinkInterrupted):
        await broken.receive()
    broken.abort()
    await listener.close()
    with pytest.raises(StopAsyncIteration):
        await waiting


async def test_listener_goes_on_when_both_links_break(scene) -> None:
    """As after a restart of the agent's connection to the worker."""
    core = await scene.core()
    net, _, listener = await listening(scene, core)
    connections = listener.connections()
    (await anext(connections)).abort()
    waiting = asyncio.create_task(anext(connections))
    core.close()
    net.close()
    net = await scene.net(await scene.core())
    come(net, 2, await answer(net))
    (await waiting).abort()
    await listener.close()


async def test_listener_tries_again_until_a_helper_can_start(scene) -> None:
    core = await scene.core()
    net, _, listener = await listening(scene, core)
    connections = listener.connections()
    (await anext(connections)).abort()
    waiting = asyncio.create_task(anext(connections))
    net.close()
    for code in ("resource_exhausted", "interrupted"):
        number, request = await core.request()
        assert request == {"op": "net.open"}
        core.reset(number, code)
    net = await scene.net(core)
    come(net, 2, await answer(net))
    (await waiting).abort()
    await listener.close()


async def test_listener_stops_trying_when_it_is_refused(scene) -> None:
    core = await scene.core()
    net, _, listener = await listening(scene, core)
    connections = listener.connections()
    (await anext(connections)).abort()
    waiting = asyncio.create_task(anext(connections))
    net.close()
    net = await scene.net(core)
    number, _ = await net.request()
    net.reset(number, "permission_denied")
    with pytest.raises(InvalidRequest):
        await waiting


async def test_listener_closed_while_it_asks_again(scene) -> None:
    core = await scene.core()
    net, _, listener = await listening(scene, core)
    connections = listener.connections()
    (await anext(connections)).abort()
    waiting = asyncio.create_task(anext(connections))
    net.close()
    net = await scene.net(core)
    number, _ = await net.request()
    await listener.close()
    net.message(number, {"address": ADDRESS})
    with pytest.raises(StopAsyncIteration):
        await waiting
    assert (await net.until(Kind.RESET)).stream == number


async def test_listener_ends_with_its_sandbox(scene) -> None:
    _, _, listener = await listening(scene, await scene.core())
    connections = listener.connections()
    (await anext(connections)).abort()
    waiting = asyncio.create_task(anext(connections))
    await asyncio.sleep(0)
    scene.link.mark_lost("its container ended")
    with pytest.raises(SandboxLost):
        await waiting


async def test_listener_that_another_takes_over(scene) -> None:
    net, number, listener = await listening(scene, await scene.core())
    connections = listener.connections()
    (await anext(connections)).abort()
    net.reset(number, "conflict")
    with pytest.raises(Conflict):
        await anext(connections)


async def test_connections_that_nobody_takes_are_bounded(scene, monkeypatch) -> None:
    monkeypatch.setattr(port_listener, "MAX_BACKLOG", 3)
    net, number, listener = await listening(scene, await scene.core())
    for stream in (4, 6, 8):
        come(net, stream, number)
    refused = await net.until(Kind.RESET)
    assert refused.stream == 8
    assert b'"busy"' in refused.body
    await listener.close()
    assert (await scene.link.net())._streams == {}


@pytest.mark.parametrize("listener", [None, "1", -1, True], ids=repr)
async def test_broken_offers_cost_the_link_then_the_sandbox(scene, listener) -> None:
    core = await scene.core()
    for _ in range(helper_link.MAX_VIOLATIONS):
        starting = asyncio.create_task(scene.agent.listen("127.0.0.1:0"))
        net = await scene.net(core)
        await answer(net, "127.0.0.1:0")
        await starting
        come(net, 2, listener)
        await net.eof()
    await core.eof()
    with pytest.raises(SandboxQuarantined):
        await scene.agent.health()


# An agent older than protocol 1.2 listens on its core link.


async def legacy(scene) -> tuple:
    core = await scene.core(protocol=[1, 1])
    starting = asyncio.create_task(scene.agent.listen("127.0.0.1:0"))
    number = await answer(core, "127.0.0.1:0")
    come(core, 2, number)
    return core, await starting


async def test_listener_of_an_older_agent_goes_on_when_its_link_breaks(scene) -> None:
    core, listener = await legacy(scene)
    connections = listener.connections()
    (await anext(connections)).abort()
    waiting = asyncio.create_task(anext(connections))
    core.close()
    core = await scene.core(protocol=[1, 1])
    number, _ = await core.request()
    core.reset(number, "refused")  # the former listener closes a moment later
    come(core, 2, await answer(core))
    (await waiting).abort()
    await listener.close()


async def test_address_that_an_older_agent_cannot_have_again(scene, monkeypatch) -> None:
    monkeypatch.setattr(port_listener, "MAX_REFUSALS", 2)
    core, listener = await legacy(scene)
    connections = listener.connections()
    (await anext(connections)).abort()
    waiting = asyncio.create_task(anext(connections))
    core.close()
    core = await scene.core(protocol=[1, 1])
    for _ in range(2):
        number, _ = await core.request()
        core.reset(number, "refused")
    with pytest.raises(NotFound):
        await waiting

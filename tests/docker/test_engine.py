"""The engine's client against a real engine."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandlot.domain.errors import Conflict, EngineProblem, EngineTimeout, ImageMissing, NotFound, TierMissing
from sandlot.providers.docker import engine as engine_module
from sandlot.providers.docker.engine import Engine, EngineEvent

pytestmark = pytest.mark.docker

IMAGE = "debian:bookworm-slim"
SLEEP = {"Image": IMAGE, "Cmd": ["sleep", "60"], "HostConfig": {"NetworkMode": "none"}}


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine()
    yield engine
    await engine.close()


@pytest.fixture
async def name(engine: Engine) -> AsyncIterator[str]:
    name = f"sandlot-test-{secrets.token_hex(8)}"
    yield name
    await engine.remove(name)


def labelled(owner: str) -> dict[str, Any]:
    return {**SLEEP, "Labels": {"sandlot.owner": owner, "sandlot.sandbox": "s"}}


async def test_a_containers_life(engine: Engine, name: str) -> None:
    container_id = await engine.create(name, labelled(name))
    with pytest.raises(Conflict):
        await engine.create(name, SLEEP)
    (listed,) = await engine.list({"sandlot.owner": name})
    assert (listed["Id"], listed["State"]) == (container_id, "created")

    await engine.start(name)
    await engine.start(name)
    assert (await engine.inspect(name))["State"]["Running"] is True
    sample = await engine.stats(name)
    assert sample["pids_stats"]["current"] == 1

    await engine.update(name, {"Memory": 64 * 2**20, "MemorySwap": 64 * 2**20, "PidsLimit": 40})
    assert (await engine.inspect(name))["HostConfig"]["PidsLimit"] == 40
    await engine.pause(name)
    assert (await engine.inspect(name))["State"]["Status"] == "paused"
    await engine.unpause(name)

    await asyncio.gather(engine.remove(name), engine.remove(name))
    await engine.remove(name)
    assert not await engine.list({"sandlot.owner": name})
    with pytest.raises(NotFound):
        await engine.inspect(name)


async def test_volumes(engine: Engine, name: str) -> None:
    await engine.create_volume(name, {"sandlot.owner": name})
    await engine.create_volume(name, {"sandlot.owner": name})
    assert [volume["Name"] for volume in await engine.list_volumes({"sandlot.owner": name})] == [name]
    await engine.remove_volume(name)
    await engine.remove_volume(name)
    assert not await engine.list_volumes({"sandlot.owner": name})


async def test_errors_say_what_is_wrong(engine: Engine, name: str) -> None:
    with pytest.raises(ImageMissing):
        await engine.create(name, {**SLEEP, "Image": "sandlot-test/none:none"})
    with pytest.raises(ImageMissing):
        await engine.inspect_image("sandlot-test/none:none")
    with pytest.raises(TierMissing):
        await engine.create(name, {**SLEEP, "HostConfig": {"Runtime": "nothing-of-the-kind"}})
    with pytest.raises(EngineProblem):
        await engine.create(name, {"Image": IMAGE, "HostConfig": {"Memory": 1}})


async def test_an_engine_that_is_not_there(tmp_path: Path) -> None:
    away = Engine(f"unix://{tmp_path}/none.sock")
    with pytest.raises(EngineProblem, match="Is Docker running") as caught:
        await away.info()
    assert caught.value.retryable
    await away.close()


async def test_an_engine_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_enough, closed = asyncio.Event(), asyncio.Event()

    async def silence(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked_enough.wait()
        writer.close()
        closed.set()

    monkeypatch.setattr(engine_module, "READ_SECONDS", 0.1)
    server = await asyncio.start_unix_server(silence, tmp_path / "e.sock")
    mute = Engine(f"unix://{tmp_path}/e.sock")
    with pytest.raises(EngineTimeout, match=r"within 0\.1 s"):
        await mute.info()
    await mute.close()
    server.close()
    asked_enough.set()
    await asyncio.wait_for(closed.wait(), 10)


async def test_facts(engine: Engine) -> None:
    assert "runc" in await engine.runtimes()
    assert (await engine.version())["Version"]


async def test_events_tell_of_ends_and_of_gaps(engine: Engine, name: str) -> None:
    """Only of containers with our label; the first thing that the stream says is to look at everything."""
    events = engine.events({"sandlot.owner": name})
    assert await anext(events) is None
    other = name + "-other"
    try:
        for container, owner in ((other, other), (name, name)):
            await engine.create(container, labelled(owner))
            await engine.start(container)
            await engine.remove(container)
        async with asyncio.timeout(30):
            died, destroyed = await anext(events), await anext(events)
    finally:
        await engine.remove(other)
        await events.aclose()
    assert isinstance(died, EngineEvent)
    assert isinstance(destroyed, EngineEvent)
    assert (died.action, died.sandbox_id, died.exit_code) == ("die", "s", "137")
    assert destroyed.action == "destroy"
    assert died.container_id == destroyed.container_id


async def test_events_tell_what_ended_just_before(engine: Engine, name: str) -> None:
    """The engine answers before it listens: what ends between is told all the same."""
    await engine.create(name, labelled(name))
    await engine.remove(name)
    events = engine.events({"sandlot.owner": name})
    try:
        assert await anext(events) is None
        async with asyncio.timeout(30):
            event = await anext(events)
    finally:
        await events.aclose()
    assert event is not None
    assert event.action == "destroy"


async def test_events_come_back_after_a_cut(engine: Engine, name: str, tmp_path: Path) -> None:
    """Through a proxy that hangs up once: after the cut the stream says again to look at everything."""
    pipes: list[asyncio.Task[None]] = []
    connections: list[asyncio.StreamWriter] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(engine.host.removeprefix("unix://"))
        connections.extend((writer, back))
        pipes.extend((asyncio.create_task(pump(reader, back)), asyncio.create_task(pump(there, writer))))

    server = await asyncio.start_unix_server(proxy, tmp_path / "p.sock")
    through = Engine(f"unix://{tmp_path}/p.sock")
    events = through.events({"sandlot.owner": name})
    try:
        assert await anext(events) is None
        for connection in connections:
            connection.close()
        async with asyncio.timeout(30):
            assert await anext(events) is None
        await engine.create(name, labelled(name))
        await engine.remove(name)
        async with asyncio.timeout(30):
            event = await anext(events)
        assert event is not None
        assert event.action == "destroy"
    finally:
        await events.aclose()
        await through.close()
        server.close()
        for connection in connections:
            connection.close()
        await asyncio.gather(*pipes, return_exceptions=True)

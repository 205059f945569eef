"""What only the Docker provider promises: ends are noticed, failures leave nothing, workers do not mix."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandlot.domain.capacity.limits import MIB, Limits
from sandlot.domain.environment import Environment, Tier
from sandlot.domain.errors import (
    Conflict,
    EngineProblem,
    NotFound,
    SandboxLost,
    TierMissing,
    Unsupported,
)
from sandlot.domain.execution import ExecRequest
from sandlot.domain.ids import first_workspace_of, new_sandbox_id
from sandlot.providers.base import SandboxSpec
from sandlot.providers.docker import end_watcher
from sandlot.providers.docker import provider as provider_module
from sandlot.providers.docker.agent_setup import packaged_agent
from sandlot.providers.docker.engine import Engine
from sandlot.providers.docker.host import folder as hostdir
from sandlot.providers.docker.provider import DockerProvider
from sandlot.providers.docker.spec import RUNTIMES, container_name

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(not packaged_agent().exists(), reason="the agent is not built: make agent"),
]

TIERS = (Tier.RUNC, Tier.RUNSC)
SLIM = Environment(name="slim", image="sandlot/slim:latest")
MakeProvider = Callable[..., DockerProvider]


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine()
    yield engine
    await engine.close()


@pytest.fixture
async def make_provider(short_tmp: Path, engine: Engine) -> AsyncIterator[MakeProvider]:
    """Providers, each with an owner and a folder of its own unless told; nothing of theirs is left behind."""
    made: list[DockerProvider] = []
    owners: set[str] = set()

    def make(owner: str | None = None, data: str = "d", **options: Any) -> DockerProvider:
        owner = owner or f"test-{secrets.token_hex(6)}"
        owners.add(owner)
        made.append(DockerProvider(owner=owner, data_dir=short_tmp / data, **options))
        return made[-1]

    yield make
    for provider in made:
        await provider.close()
    for owner in owners:
        for container in await engine.list({"sandlot.owner": owner}):
            await engine.remove(container["Id"])
        for volume in await engine.list_volumes({"sandlot.owner": owner}):
            await engine.remove_volume(volume["Name"])


def spec(environment: Environment = SLIM, **labels: str) -> SandboxSpec:
    return SandboxSpec(new_sandbox_id(), environment, labels)


async def assert_nothing_left(engine: Engine, short_tmp: Path, sandbox_id: str) -> None:
    labels = {"sandlot.sandbox": sandbox_id}
    assert not await engine.list(labels)
    assert not await engine.list_volumes(labels)
    assert not list((short_tmp / "d" / "s").iterdir())


@pytest.mark.parametrize("tier", TIERS)
async def test_create_list_destroy(
    make_provider: MakeProvider, engine: Engine, short_tmp: Path, tier: Tier
) -> None:
    provider = make_provider()
    wanted = spec(replace(SLIM, tier=tier), session="s1")
    sandbox = await provider.create(wanted)
    assert (sandbox.id, sandbox.tier) == (wanted.id, tier)
    assert (await sandbox.run(ExecRequest(command="echo $HOME; pwd"))).stdout == b"/workspace\n/workspace\n"
    (found,) = await provider.list()
    assert (found.id, found.state, found.environment, found.tier) == (wanted.id, "running", "slim", tier)
    assert dict(found.labels) == {"session": "s1"}
    stats = await provider.stats(wanted.id)
    assert stats.memory_bytes > MIB
    assert stats.cpu_ns > 0
    with pytest.raises(Conflict):
        await provider.create(wanted)
    assert (await sandbox.run(ExecRequest(command="true"))).exit_code == 0, "the second create harms nobody"
    await asyncio.gather(provider.destroy(wanted.id), provider.destroy(wanted.id))
    await provider.destroy(wanted.id)
    assert await sandbox.wait_lost() == "the sandbox was destroyed"
    with pytest.raises(SandboxLost):
        await sandbox.health()
    await assert_nothing_left(engine, short_tmp, wanted.id)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("how", ["kill", "remove"])
async def test_an_end_from_outside_is_noticed_in_time(
    make_provider: MakeProvider, engine: Engine, tier: Tier, how: str
) -> None:
    """Within 3 s. One of three shows it: a machine that stands still for a moment is no fault of ours."""
    provider = make_provider()
    took: list[float] = []
    for _ in range(3):
        sandbox = await provider.create(spec(replace(SLIM, tier=tier)))
        pending = asyncio.create_task(sandbox.run(ExecRequest(command="sleep 60")))
        await asyncio.sleep(0.2)
        container = engine._docker.containers.container(container_name(sandbox.id))
        if how == "kill":
            await container.kill()
        else:
            await container.delete(force=True)
        ended = time.monotonic()
        async with asyncio.timeout(15):
            assert "container ended" in await sandbox.wait_lost()
            with pytest.raises(SandboxLost):
                await pending
        took.append(time.monotonic() - ended)
        with pytest.raises(SandboxLost):
            await sandbox.files.stat("/")
        await provider.destroy(sandbox.id)
    assert min(took) < 3
    assert not await provider.list()


async def test_an_end_during_a_gap_of_events_is_noticed(make_provider: MakeProvider, engine: Engine) -> None:
    provider = make_provider()
    lost, kept = await asyncio.gather(provider.create(spec()), provider.create(spec()))
    assert provider._watch_task is not None
    provider._watch_task.cancel()
    await asyncio.gather(provider._watch_task, return_exceptions=True)
    await engine.remove(container_name(lost.id))
    provider._watch_task = asyncio.create_task(provider._end_watcher.run())
    async with asyncio.timeout(15):
        assert await lost.wait_lost() == "the sandbox's container is gone"
    assert (await kept.run(ExecRequest(command="true"))).exit_code == 0


async def test_a_list_that_fails_after_a_gap_is_asked_for_again(
    make_provider: MakeProvider, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream of events goes on: nothing else would ever make the provider look again."""
    monkeypatch.setattr(end_watcher, "COMPARE_RETRY_SECONDS", 0.05)
    provider = make_provider()
    sandbox = await provider.create(spec())
    assert provider._watch_task is not None
    provider._watch_task.cancel()
    await asyncio.gather(provider._watch_task, return_exceptions=True)
    await engine.remove(container_name(sandbox.id))
    answers, listing = 0, provider._engine.list

    async def fails_twice(labels: Any) -> Any:
        nonlocal answers
        answers += 1
        if answers <= 2:
            raise EngineProblem("overloaded")
        return await listing(labels)

    monkeypatch.setattr(provider._engine, "list", fails_twice)
    provider._watch_task = asyncio.create_task(provider._end_watcher.run())
    async with asyncio.timeout(15):
        assert await sandbox.wait_lost() == "the sandbox's container is gone"


@pytest.mark.parametrize("tier", TIERS)
async def test_the_next_life_adopts(make_provider: MakeProvider, engine: Engine, tier: Tier) -> None:
    owner = f"test-{secrets.token_hex(6)}"
    first = make_provider(owner)
    sandbox = await first.create(spec(replace(SLIM, tier=tier)))
    await sandbox.run(ExecRequest(command="echo kept > note"))
    await first.close()

    second = make_provider(owner)
    (found,) = await second.list()
    adopted = await second.adopt(found.id)
    assert (adopted.id, adopted.tier) == (sandbox.id, tier)
    assert (await adopted.run(ExecRequest(command="cat note"))).stdout == b"kept\n"
    assert await second.adopt(found.id) is adopted
    await engine.remove(container_name(found.id))
    async with asyncio.timeout(15):
        await adopted.wait_lost()
    await second.destroy(found.id)
    with pytest.raises(NotFound):
        await second.adopt(found.id)


async def test_adopted_by_several_at_once(make_provider: MakeProvider) -> None:
    owner = f"test-{secrets.token_hex(6)}"
    first = make_provider(owner)
    sandbox = await first.create(spec())
    await first.close()
    second = make_provider(owner)
    adopted = await asyncio.gather(*(second.adopt(sandbox.id) for _ in range(5)))
    assert len(set(map(id, adopted))) == 1
    assert (await adopted[0].run(ExecRequest(command="true"))).exit_code == 0


async def test_adopting_what_has_ended(make_provider: MakeProvider, engine: Engine) -> None:
    owner = f"test-{secrets.token_hex(6)}"
    first = make_provider(owner)
    sandbox = await first.create(spec())
    await first.close()
    await engine._docker.containers.container(container_name(sandbox.id)).kill()
    second = make_provider(owner)
    with pytest.raises(SandboxLost, match="exit code 137"):
        await second.adopt(sandbox.id)
    (found,) = await second.list()
    assert found.state == "exited"


async def test_workers_do_not_mix(make_provider: MakeProvider) -> None:
    mine, theirs = make_provider(), make_provider(data="e")
    sandbox = await mine.create(spec())
    await theirs.open()
    assert not await theirs.list()
    with pytest.raises(NotFound):
        await theirs.adopt(sandbox.id)
    with pytest.raises(NotFound):
        await theirs.update_limits(sandbox.id, Limits())
    for call in (theirs.pause, theirs.unpause, theirs.stats):
        with pytest.raises(NotFound):
            await call(sandbox.id)
    await theirs.destroy(sandbox.id)
    assert (await sandbox.run(ExecRequest(command="true"))).exit_code == 0
    with pytest.raises(Conflict, match="Another worker"):
        await make_provider().open()


async def test_a_failed_start_leaves_nothing(
    make_provider: MakeProvider, engine: Engine, short_tmp: Path, tmp_path: Path
) -> None:
    (tmp_path / "agent").write_bytes(b"this is not a program")
    provider = make_provider(agent_path=tmp_path / "agent")
    wanted = spec()
    with pytest.raises(EngineProblem):
        await provider.create(wanted)
    await assert_nothing_left(engine, short_tmp, wanted.id)


async def test_an_agent_that_exits_or_is_silent_leaves_nothing(
    make_provider: MakeProvider,
    engine: Engine,
    short_tmp: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A script stands in for the agent: the slim image has the shell for it."""
    for number, (script, expected, seconds) in enumerate(
        # The exit is told by an event of the engine, which may take its time; silence is waited out.
        (("exit 3", "exit code 3", 30.0), ("exec sleep 60", "did not answer", 1.0))
    ):
        monkeypatch.setattr(provider_module, "AGENT_START_SECONDS", seconds)
        monkeypatch.setitem(hostdir.AGENT_MODES, Tier.RUNC, 0o555)  # a script is read by its interpreter
        program = tmp_path / f"agent{number}"
        program.write_text(f"#!/bin/sh\n{script}\n")
        provider = make_provider(agent_path=program)
        wanted = spec()
        with pytest.raises(EngineProblem, match=expected):
            await provider.create(wanted)
        await assert_nothing_left(engine, short_tmp, wanted.id)
        await provider.close()


@pytest.mark.parametrize("after", [0.0, 0.02, 0.06, 0.12])
async def test_a_cancelled_create_leaves_nothing(
    make_provider: MakeProvider, engine: Engine, short_tmp: Path, after: float
) -> None:
    provider = make_provider()
    await provider.prepare(SLIM)
    while True:
        wanted = spec()
        task = asyncio.create_task(provider.create(wanted))
        await asyncio.sleep(after)
        if not task.done():
            break
        await provider.destroy(wanted.id)  # a quick machine was done by then: cancelled earlier next time
        after /= 2
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await assert_nothing_left(engine, short_tmp, wanted.id)


@pytest.mark.parametrize("after", [0.0, 0.02, 0.06, 0.12])
async def test_destroyed_while_it_is_made(
    make_provider: MakeProvider, engine: Engine, short_tmp: Path, after: float
) -> None:
    provider = make_provider()
    await provider.prepare(SLIM)
    wanted = spec()
    making = asyncio.create_task(provider.create(wanted))
    await asyncio.sleep(after)
    ended, made = await asyncio.gather(provider.destroy(wanted.id), making, return_exceptions=True)
    assert ended is None, ended
    if isinstance(made, BaseException):  # a conflict: the engine does not start what is being removed
        assert isinstance(made, EngineProblem | Conflict), made
    else:  # the order to destroy came before there was anything
        await provider.destroy(wanted.id)
    await assert_nothing_left(engine, short_tmp, wanted.id)


@pytest.mark.parametrize("after", [0.0, 0.02, 0.06, 0.12])
async def test_closed_while_one_is_made(
    make_provider: MakeProvider, engine: Engine, short_tmp: Path, after: float
) -> None:
    """Either it was made before the provider closed, and can be adopted, or nothing of it is left."""
    owner = f"test-{secrets.token_hex(6)}"
    provider = make_provider(owner)
    await provider.prepare(SLIM)
    wanted = spec()
    making = asyncio.create_task(provider.create(wanted))
    await asyncio.sleep(after)
    await provider.close()
    (made,) = await asyncio.gather(making, return_exceptions=True)
    assert provider._watch_task is None
    assert provider._engine._docker_client is None
    if isinstance(made, BaseException):
        assert isinstance(made, EngineProblem), made
        await assert_nothing_left(engine, short_tmp, wanted.id)
    else:
        await make_provider(owner).adopt(wanted.id)


async def test_a_remnant_with_the_same_name_is_replaced(make_provider: MakeProvider, engine: Engine) -> None:
    owner = f"test-{secrets.token_hex(6)}"
    provider = make_provider(owner)
    wanted = spec()
    labels = {"sandlot.owner": owner, "sandlot.sandbox": wanted.id}
    await engine.create(
        container_name(wanted.id),
        {"Image": SLIM.image, "Labels": labels, "HostConfig": {"NetworkMode": "none"}},
    )
    sandbox = await provider.create(wanted)
    await asyncio.sleep(0.3)
    assert (await sandbox.run(ExecRequest(command="true"))).exit_code == 0


async def test_a_workspace_without_a_container_is_in_its_store_and_destroyed(
    make_provider: MakeProvider, engine: Engine
) -> None:
    provider = make_provider()
    sandbox = await provider.create(spec())
    await engine.remove(container_name(sandbox.id))
    await sandbox.wait_lost()
    provider._in_use.by_id.clear()
    assert not await provider.list()
    assert (await provider.workspaces.list()).workspaces == {first_workspace_of(sandbox.id)}
    await provider.destroy(sandbox.id)
    assert not (await provider.workspaces.list()).workspaces


async def test_limits_can_be_changed_where_the_engine_can(
    make_provider: MakeProvider, engine: Engine
) -> None:
    provider = make_provider()
    sandbox = await provider.create(spec())
    await provider.update_limits(sandbox.id, Limits(memory_bytes=128 * MIB, cpus=1.0, pids=64))
    host = (await engine.inspect(container_name(sandbox.id)))["HostConfig"]
    assert (host["Memory"], host["CpuQuota"], host["PidsLimit"]) == (128 * MIB, 100_000, 64)
    with pytest.raises(Unsupported, match="ShmSize"):
        await provider.update_limits(sandbox.id, Limits(shm_bytes=64 * MIB))
    other = await provider.create(spec(replace(SLIM, tier=Tier.RUNSC)))
    for beyond in (Limits(memory_bytes=1024 * MIB), Limits(cpus=1.0)):
        with pytest.raises(Unsupported, match="runsc"):
            await provider.update_limits(other.id, beyond)


@pytest.mark.parametrize("tier", TIERS)
async def test_pause(make_provider: MakeProvider, tier: Tier) -> None:
    provider = make_provider()
    sandbox = await provider.create(spec(replace(SLIM, tier=tier)))
    await provider.pause(sandbox.id)
    (found,) = await provider.list()
    assert found.state == "paused"
    await provider.unpause(sandbox.id)
    assert (await sandbox.run(ExecRequest(command="true"))).exit_code == 0


async def test_a_missing_tier_is_refused(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RUNTIMES, Tier.RUNSC, "runsc-that-is-not-there")
    provider = make_provider()
    with pytest.raises(TierMissing, match=r"daemon\.json"):
        await provider.prepare(replace(SLIM, tier=Tier.RUNSC))


@pytest.mark.parametrize("tier", TIERS)
async def test_what_the_engine_made_is_what_was_asked_for(
    make_provider: MakeProvider, engine: Engine, tier: Tier
) -> None:
    """`docker inspect` against the golden spec: the engine neither drops nor adds anything that matters."""
    provider = make_provider()
    sandbox = await provider.create(spec(replace(SLIM, tier=tier)))
    made = await engine.inspect(container_name(sandbox.id))
    golden = json.loads((Path(__file__).parents[1] / "golden" / f"container-{tier}.json").read_text())
    asked, host = golden["HostConfig"], made["HostConfig"]
    for name in asked.keys() - {"Mounts", "SecurityOpt", "CapAdd", "RestartPolicy"}:
        assert host[name] == asked[name], name
    assert {capability.removeprefix("CAP_") for capability in host["CapAdd"]} == set(asked["CapAdd"])
    assert host["SecurityOpt"][0] == "no-new-privileges"
    assert [(m["Type"], m["Target"], m.get("ReadOnly")) for m in host["Mounts"]] == [
        (m["Type"], m["Target"], m.get("ReadOnly")) for m in asked["Mounts"]
    ]
    assert not host["Privileged"]
    assert not host["Devices"]
    assert not host["Binds"]
    assert host["PidMode"] == host["UTSMode"] == host["UsernsMode"] == ""
    assert host["MaskedPaths"]
    assert host["ReadonlyPaths"]
    assert {m["Destination"] for m in made["Mounts"]} == {m["Target"] for m in asked["Mounts"]}
    assert made["Config"]["User"] == "0:0"
    assert made["Config"]["Entrypoint"] == ["/.sandlot/agent", "init"]
    assert not any(variable.startswith("GO") and "=" in variable for variable in made["Config"]["Env"])

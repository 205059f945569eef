"""A hostile program in the agent's place: the worker lives, the sandbox is cut off, its neighbour notices nothing."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from bench.rig import rss_bytes

from sandlot.domain.environment import Environment, Tier
from sandlot.domain.errors import (
    EngineProblem,
    LinkInterrupted,
    SandboxLost,
    SandboxQuarantined,
    SandlotError,
)
from sandlot.domain.execution import ExecRequest
from sandlot.domain.ids import new_sandbox_id
from sandlot.providers.base import SandboxSpec
from sandlot.providers.docker import provider as provider_module
from sandlot.providers.docker.host import folder as hostdir
from sandlot.providers.docker.provider import DockerProvider
from sandlot.providers.link import mux
from sandlot.testing.provider_suite import Harness
from sandlot.testing.provider_suite.harness import destroy
from tests.docker.conftest import BASE

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

SCRIPT = (Path(__file__).parent / "inside" / "hostile_agent.py").read_text()
UNHEARD = "did not answer within 3 s"
# What is said of each.
BEFORE = {
    "silence": UNHEARD,
    "garbage": "broke the protocol",
    "oversize": "broke the protocol",
    "half a frame": UNHEARD,
    "deep json": "broke the protocol",
    "wrong proof": "failed the handshake",
}
AFTER = ["garbage", "a stream never opened", "more than the credit", "a wrong exit", "deep json"]
FLOODS = [
    "of pings",
    "of pongs",
    "of empty credit",
    "of streams",
    "for a stream that has ended",
    "of connections",
]
LIMIT = 1000
FLOOD_BYTES = 120_000_000  # of "far too much output"
MEMORY_BOUND_BYTES = 64 * 1024 * 1024


@asynccontextmanager
async def hostile(folder: Path, behaviour: str) -> AsyncIterator[DockerProvider]:
    program = folder / "agent.py"
    program.write_text(SCRIPT.replace('BEHAVIOUR = "silence"', f"BEHAVIOUR = {behaviour!r}"))
    program.chmod(0o755)
    hostdir.AGENT_MODES[Tier.RUNC] = 0o555  # a script has to be read by its interpreter
    provider = DockerProvider(owner=f"test-{secrets.token_hex(4)}", data_dir=folder / "d", agent_path=program)
    try:
        yield provider
    finally:
        hostdir.AGENT_MODES[Tier.RUNC] = 0o111
        for found in await provider.list():
            await destroy(provider, found.id)
        await provider.close()


def spec(tier: Tier) -> SandboxSpec:
    return SandboxSpec(id=new_sandbox_id(), environment=Environment(name="hostile", image=BASE, tier=tier))


@pytest.mark.parametrize("behaviour", BEFORE)
async def test_before_the_handshake(
    harness: Harness, short_tmp: Path, behaviour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    neighbour = await harness.create()
    if BEFORE[behaviour] == UNHEARD:
        # For these alone: any other may take longer to start on a busy machine.
        monkeypatch.setattr(provider_module, "AGENT_START_SECONDS", 3.0)
    memory = rss_bytes()
    async with hostile(short_tmp, behaviour) as provider:
        with pytest.raises(EngineProblem, match=BEFORE[behaviour]) as caught:
            await asyncio.wait_for(provider.create(spec(harness.environment.tier)), 60)
        assert caught.value.retryable
        assert list(await provider.list()) == [], "a create that failed leaves nothing"
    assert (await neighbour.run(ExecRequest(command="echo fine"))).stdout == b"fine\n"
    assert rss_bytes() - memory < MEMORY_BOUND_BYTES
    await harness.destroy(neighbour.id)


@pytest.mark.parametrize("behaviour", AFTER)
async def test_after_the_handshake(harness: Harness, short_tmp: Path, behaviour: str) -> None:
    neighbour = await harness.create()
    memory = rss_bytes()
    async with hostile(short_tmp, "then " + behaviour) as provider:
        sandbox = await provider.create(spec(harness.environment.tier))
        with pytest.raises(SandboxQuarantined):
            await asyncio.wait_for(sandbox.run(ExecRequest(command="echo hi")), 60)
        with pytest.raises(SandboxLost):
            await asyncio.wait_for(sandbox.run(ExecRequest(command="echo again")), 20)
        assert "broke the protocol" in await asyncio.wait_for(sandbox.wait_lost(), 20)
        await provider.destroy(sandbox.id)
    assert (await neighbour.run(ExecRequest(command="echo fine"))).stdout == b"fine\n"
    assert rss_bytes() - memory < MEMORY_BOUND_BYTES
    await harness.destroy(neighbour.id)


# What follows breaks no rule.


async def test_far_too_much_output_is_dropped(harness: Harness, short_tmp: Path) -> None:
    memory = rss_bytes()
    async with hostile(short_tmp, "then far too much output") as provider:
        sandbox = await provider.create(spec(harness.environment.tier))
        flood = asyncio.create_task(sandbox.run(ExecRequest(command="echo hi", output_limit=LIMIT)))
        async with asyncio.timeout(120):
            while not flood.done():
                assert rss_bytes() - memory < MEMORY_BOUND_BYTES
                await asyncio.sleep(0.02)
        result = await flood
        assert (result.stdout, result.truncated) == (b"y" * LIMIT, True)
        assert result.exited.output_bytes >= FLOOD_BYTES
        await provider.destroy(sandbox.id)


async def test_streams_that_nobody_asked_for_are_refused(harness: Harness, short_tmp: Path) -> None:
    async with hostile(short_tmp, "then streams that nobody asked for") as provider:
        sandbox = await provider.create(spec(harness.environment.tier))
        result = await asyncio.wait_for(sandbox.run(ExecRequest(command="echo hi")), 120)
        assert result.stdout == b"500 refused"
        await provider.destroy(sandbox.id)


@pytest.mark.parametrize("behaviour", FLOODS)
async def test_flood_is_cut_off(harness: Harness, short_tmp: Path, behaviour: str) -> None:
    """S1: frames that the protocol allows, as fast as they can be sent."""
    neighbour = await harness.create()
    memory = rss_bytes()
    async with hostile(short_tmp, "then flood " + behaviour) as provider:
        sandbox = await provider.create(spec(harness.environment.tier))
        with pytest.raises(SandlotError):  # the flood may come before or after the answer
            await asyncio.wait_for(sandbox.run(ExecRequest(command="echo hi")), 60)
        assert "protocol abuse" in await asyncio.wait_for(sandbox.wait_lost(), 20)
        with pytest.raises(SandboxQuarantined):
            await sandbox.run(ExecRequest(command="echo again"))
        await provider.destroy(sandbox.id)
    assert (await neighbour.run(ExecRequest(command="echo fine"))).stdout == b"fine\n"
    assert rss_bytes() - memory < MEMORY_BOUND_BYTES
    await harness.destroy(neighbour.id)


async def test_silence_is_noticed(harness: Harness, short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the pings that stay unanswered. The sandbox may have been frozen: it is not given up for that."""
    monkeypatch.setattr(mux, "PING_INTERVAL_S", 0.5)
    async with hostile(short_tmp, "then silence") as provider:
        sandbox = await provider.create(spec(harness.environment.tier))
        with pytest.raises(LinkInterrupted, match="does not answer") as caught:
            await asyncio.wait_for(sandbox.start(ExecRequest(command="echo hi")), 60)
        assert caught.value.may_have_executed
        assert not sandbox.lost
        await provider.destroy(sandbox.id)

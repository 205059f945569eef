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
from sandlot.domain.errors import SandboxLost, SandboxQuarantined, SandlotError
from sandlot.domain.execution import ExecRequest
from sandlot.domain.ids import new_sandbox_id
from sandlot.providers.base import SandboxSpec
from sandlot.providers.docker import provider as provider_module
from sandlot.providers.docker.provider import DockerProvider
from sandlot.testing.provider_suite import Harness
from sandlot.testing.provider_suite.harness import destroy
from tests.docker.conftest import BASE

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

SCRIPT = (Path(__file__).parent / "inside" / "hostile_agent.py").read_text()
BEFORE = ["silence", "garbage", "oversize", "half a frame", "deep json", "wrong proof"]
AFTER = ["garbage", "a stream never opened", "more than the credit", "a wrong exit", "deep json"]
ENDLESS = ["endless output", "streams without end", "silence"]
MEMORY_BOUND_BYTES = 64 * 1024 * 1024


@asynccontextmanager
async def hostile(folder: Path, behaviour: str) -> AsyncIterator[DockerProvider]:
    program = folder / "agent.py"
    program.write_text(SCRIPT.replace('BEHAVIOUR = "silence"', f"BEHAVIOUR = {behaviour!r}"))
    program.chmod(0o755)
    provider = DockerProvider(owner=f"test-{secrets.token_hex(4)}", data_dir=folder / "d", agent_path=program)
    try:
        yield provider
    finally:
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
    # For the hostile one alone: an honest agent may take longer to start on a busy machine.
    monkeypatch.setattr(provider_module, "AGENT_START_SECONDS", 3.0)
    memory = rss_bytes()
    async with hostile(short_tmp, behaviour) as provider:
        with pytest.raises(SandlotError):
            await asyncio.wait_for(provider.create(spec(harness.environment.tier)), 60)
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
        assert await asyncio.wait_for(sandbox.wait_lost(), 20)
        await provider.destroy(sandbox.id)
    assert (await neighbour.run(ExecRequest(command="echo fine"))).stdout == b"fine\n"
    assert rss_bytes() - memory < MEMORY_BOUND_BYTES
    await harness.destroy(neighbour.id)


@pytest.mark.parametrize("behaviour", ENDLESS)
async def test_endless_answers_are_bounded(harness: Harness, short_tmp: Path, behaviour: str) -> None:
    """An agent that breaks no rule but never ends: nothing piles up, and the caller's deadline holds."""
    memory = rss_bytes()
    async with hostile(short_tmp, "then " + behaviour) as provider:
        sandbox = await provider.create(spec(harness.environment.tier))
        with pytest.raises((TimeoutError, SandlotError)):
            await asyncio.wait_for(sandbox.run(ExecRequest(command="echo hi", output_limit=1000)), 5)
        assert rss_bytes() - memory < MEMORY_BOUND_BYTES
        await provider.destroy(sandbox.id)

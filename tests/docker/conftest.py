"""Real providers for the tests: each with an owner and a data directory of its own."""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sandlot.domain.environment import Environment, Tier
from sandlot.providers.base import Sandbox
from sandlot.providers.docker.provider import DockerProvider
from sandlot.testing.provider_suite import Harness

BASE = "sandlot/base:latest"
SLIM = "sandlot/slim:latest"


def docker(*arguments: str) -> Any:
    """The engine's own command, to look at things from outside; its JSON output parsed."""
    client = "/usr/bin/docker" if Path("/usr/bin/docker").exists() else "docker"
    output = subprocess.run(
        [client, *arguments], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    return json.loads(output) if output.startswith(("[", "{")) else output


@asynccontextmanager
async def harness_for(tier: Tier, image: str = BASE) -> AsyncIterator[Harness]:
    owner = f"test-{secrets.token_hex(4)}"
    data_dir = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    environment = Environment(name="test", image=image, tier=tier)

    async def reopen() -> DockerProvider:
        await harness.provider.close()
        harness.provider = DockerProvider(owner=owner, data_dir=data_dir)
        return harness.provider

    harness = Harness(
        provider=DockerProvider(owner=owner, data_dir=data_dir), environment=environment, reopen=reopen
    )
    try:
        await harness.provider.prepare(environment)
        yield harness
    finally:
        try:
            for found in await harness.provider.list():
                await harness.destroy(found.id)
        finally:
            await harness.provider.close()
            shutil.rmtree(data_dir, ignore_errors=True)


@pytest_asyncio.fixture(params=["runc", "runsc"], scope="module", loop_scope="session")
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    """A provider on each tier."""
    async with harness_for(Tier(request.param)) as harness:
        yield harness


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sandbox(harness: Harness) -> AsyncIterator[Sandbox]:
    """One for all tests of a module."""
    sandbox = await harness.create()
    yield sandbox
    await harness.destroy(sandbox.id)

"""Each tool of our images in a real session: whatever the tool shows of a denial, the command's result names it."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.domain.execution import Verdict
from tests.docker.shipped import build_image
from tests.docker.test_tools_behind_the_proxy import DENIED, IMAGES, TOOLS
from tests.network.conftest import ENVIRONMENTS, open_worker

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

ENVIRONMENT = """
name: {name}
description: A test.
image: sandlot/{image}
tier: {tier}
limits: {{memory: 1g}}
pool: {{size: 0, min: 0, max: 2}}
"""
TARGETS = {
    "curl": "example.com:443",
    "wget": "example.com:443",
    "git": "github.com:443",
    "pip": "pypi.org:443",
    "apt": "deb.debian.org:80",
    "uv": "pypi.org:443",
    "npm": "registry.npmjs.org:443",
    "pnpm": "registry.npmjs.org:443",
}


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def client() -> AsyncIterator[AsyncClient]:
    """Of a worker with an environment for each image and tier."""
    folder = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    environments = folder / "registry/environments"
    environments.mkdir(parents=True)
    for image in set(IMAGES.values()):
        for tier in ENVIRONMENTS:
            name = f"{image}-{tier}"
            (environments / f"{name}.yaml").write_text(ENVIRONMENT.format(name=name, image=image, tier=tier))
    service = await open_worker(folder / "data", registry_dir=folder / "registry")
    try:
        yield AsyncClient(service=service)
    finally:
        await service.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def sessions() -> dict[str, AsyncSession]:
    """By environment: they end with the worker."""
    return {}


@pytest.mark.parametrize("tier", ENVIRONMENTS)
@pytest.mark.parametrize("tool", TOOLS)
async def test_the_result_names_the_host_and_the_rule(
    client: AsyncClient, sessions: dict[str, AsyncSession], tool: str, tier: str
) -> None:
    environment = f"{IMAGES[tool]}-{tier}" if tool in IMAGES else ENVIRONMENTS[tier]
    if environment not in sessions:
        if tool in IMAGES:
            await asyncio.to_thread(build_image, IMAGES[tool])
        sessions[environment] = await client.create(environment)
    result = await sessions[environment].run(DENIED[tool], timeout_s=120)
    assert result.verdict is Verdict.EGRESS_DENIED, result
    assert TARGETS[tool] in {each.target for each in result.denied}  # apt has several
    for each in result.denied:
        assert each.rule == "not allowed"
        assert "session.network.allow(" in each.text

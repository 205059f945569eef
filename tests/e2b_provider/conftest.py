"""Providers at a real server that speaks E2B's API: our own, with sandboxes on Docker."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandlot import AsyncClient
from sandlot.domain.e2b.names import key_for_e2b
from sandlot.domain.environment import Environment, ProviderName, Tier
from sandlot.providers.e2b import E2BAccount, E2BProvider
from sandlot.testing.provider_suite import Harness
from tests.faults.rig import ServerProcess

SERVER_KEY = "the-key-of-the-other-server-0123"
E2B_KEY = key_for_e2b(SERVER_KEY)


@pytest.fixture(scope="session")
def e2b_cloud() -> Iterator[ServerProcess]:
    """In the place of E2B's cloud. Its sandboxes have more processes and memory than ours would."""
    server = ServerProcess(api_key=SERVER_KEY, pool_size="2", max_pool_size="4", orphan_grace_s="30")
    try:
        asyncio.run(server.start())
        yield server
    finally:
        asyncio.run(server.clean())


def account_at(server: ServerProcess, *, key: str = E2B_KEY, timeout_s: int = 600) -> E2BAccount:
    return E2BAccount(
        api_key=key, api_url=server.url, sandbox_url=server.url, timeout_s=timeout_s, user="user"
    )


def environment(template: str = "base") -> Environment:
    return Environment(name="test", image=template, tier=Tier.MICROVM, provider=ProviderName.E2B)


@asynccontextmanager
async def harness_at(server: ServerProcess, *, timeout_s: int = 600) -> AsyncIterator[Harness]:
    owner = f"test-{secrets.token_hex(4)}"
    data_dir = Path(tempfile.mkdtemp(prefix="sandlot-test-"))

    def provider() -> E2BProvider:
        return E2BProvider(owner=owner, data_dir=data_dir, account=account_at(server, timeout_s=timeout_s))

    async def reopen() -> E2BProvider:
        await harness.provider.close()
        harness.provider = provider()
        return harness.provider

    harness = Harness(provider=provider(), environment=environment(), reopen=reopen)
    try:
        yield harness
    finally:
        try:
            for found in await harness.provider.list():
                await harness.destroy(found.id)
        finally:
            await harness.provider.close()
            shutil.rmtree(data_dir, ignore_errors=True)


ENVIRONMENT = """
name: cloud
description: At the other server.
image: base
provider: e2b
pool: {size: 1, min: 1, max: 2}
"""


def worker_at(cloud: ServerProcess, registry: Path, **settings: str) -> ServerProcess:
    """A worker with the environment ``cloud`` at the other server, beside its own on Docker."""
    (registry / "environments").mkdir(exist_ok=True)
    (registry / "environments" / "cloud.yaml").write_text(ENVIRONMENT)
    return ServerProcess(
        registry=registry,
        e2b_api_key=E2B_KEY,
        e2b_api_url=cloud.url,
        e2b_sandbox_url=cloud.url,
        e2b_user="user",
        e2b_timeout_s="300",
        pool_size="1",
        **settings,
    )


def cloud_client(cloud: ServerProcess) -> AsyncClient:
    """The other server's own API, to look at its sandboxes and to end them."""
    return AsyncClient(cloud.url, api_key=SERVER_KEY)


async def clean_worker(worker: ServerProcess, cloud: ServerProcess) -> None:
    """Removes what the worker has, at the other server too."""
    await worker.clean()
    async with cloud_client(cloud) as client:
        async for session in client.sessions():
            if worker.owner in str(session.info.metadata):
                await session.delete()

"""Stores of both kinds for the tests, with providers on them."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandlot.domain.capacity.limits import MIB
from sandlot.domain.environment import Environment, Tier
from sandlot.providers.docker.provider import DockerProvider
from sandlot.providers.docker.workspaces.btrfs.store import BtrfsStore
from sandlot.testing.workspace_suite import WorkspaceHarness
from tests.docker.conftest import SLIM
from tests.workspaces.storage import mounted_btrfs, require_btrfs

QUOTA = 64 * MIB


@pytest.fixture(scope="session")
def btrfs() -> Iterator[Path]:
    require_btrfs()
    with mounted_btrfs() as folder:
        yield folder


@contextlib.asynccontextmanager
async def workspace_harness_for(
    tier: Tier, btrfs: Path | None, image: str = SLIM
) -> AsyncIterator[WorkspaceHarness]:
    """``btrfs``: where its workspaces are; None: in volumes."""
    owner = f"test-{secrets.token_hex(4)}"
    data_dir = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    environment = Environment(name="test", image=image, tier=tier)

    def provider() -> DockerProvider:
        store = None if btrfs is None else BtrfsStore(btrfs, owner, QUOTA)
        return DockerProvider(owner=owner, data_dir=data_dir, workspaces=store)

    async def reopen() -> DockerProvider:
        await harness.provider.close()
        harness.provider = provider()
        return harness.provider

    harness = WorkspaceHarness(provider(), environment, reopen, quota_bytes=None if btrfs is None else QUOTA)
    try:
        await harness.provider.prepare(environment)
        yield harness
        left = await harness.store.list()
        assert not left.workspaces, left
        assert not left.snapshots, left
        assert not left.volumes, left
    finally:
        try:
            for found in await harness.provider.list():
                await harness.destroy(found.id)
        finally:
            await harness.provider.close()
            shutil.rmtree(data_dir, ignore_errors=True)

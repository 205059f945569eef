"""The workspace suite on every store that we ship, on both tiers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandlot.domain.environment import Tier
from sandlot.testing.workspace_suite import WorkspaceHarness, WorkspaceSuite
from tests.workspaces.conftest import workspace_harness_for

pytestmark = pytest.mark.docker


class TestBtrfsRunc(WorkspaceSuite):
    @pytest_asyncio.fixture(loop_scope="session", scope="class")
    @classmethod
    async def workspace_harness(cls, btrfs: Path) -> AsyncIterator[WorkspaceHarness]:
        async with workspace_harness_for(Tier.RUNC, btrfs) as harness:
            yield harness


class TestBtrfsRunsc(WorkspaceSuite):
    @pytest_asyncio.fixture(loop_scope="session", scope="class")
    @classmethod
    async def workspace_harness(cls, btrfs: Path) -> AsyncIterator[WorkspaceHarness]:
        async with workspace_harness_for(Tier.RUNSC, btrfs) as harness:
            yield harness


class TestVolumesRunc(WorkspaceSuite):
    @pytest_asyncio.fixture(loop_scope="session", scope="class")
    @classmethod
    async def workspace_harness(cls) -> AsyncIterator[WorkspaceHarness]:
        async with workspace_harness_for(Tier.RUNC, None) as harness:
            yield harness


class TestVolumesRunsc(WorkspaceSuite):
    @pytest_asyncio.fixture(loop_scope="session", scope="class")
    @classmethod
    async def workspace_harness(cls) -> AsyncIterator[WorkspaceHarness]:
        async with workspace_harness_for(Tier.RUNSC, None) as harness:
            yield harness

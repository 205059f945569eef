"""The workspace suite on every store that we ship, on both tiers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandlot.domain.environment import Tier
from sandlot.testing.workspace_suite import WorkspaceHarness, WorkspaceSuite
from sandlot.testing.workspace_suite.lives import LifeCases
from sandlot.testing.workspace_suite.snapshots import SnapshotCases
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


class TestVolumesRunsc(LifeCases):
    """Copies are made beside the sandbox, by the same container on both tiers. So only what the sandbox's tier
    has to do with is tried on this one too.
    """

    test_a_snapshot_never_changes = SnapshotCases.test_a_snapshot_never_changes
    test_finished_commands_are_in_it_completely = SnapshotCases.test_finished_commands_are_in_it_completely
    test_reading_is_no_change = SnapshotCases.test_reading_is_no_change

    @pytest_asyncio.fixture(loop_scope="session", scope="class")
    @classmethod
    async def workspace_harness(cls) -> AsyncIterator[WorkspaceHarness]:
        async with workspace_harness_for(Tier.RUNSC, None) as harness:
            yield harness

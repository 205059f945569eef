"""The harness that a provider under test provides, and what all cases share."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
import pytest_asyncio

from sandlot.domain.ids import (
    first_workspace_of,
    is_snapshot_id,
    new_sandbox_id,
    new_snapshot_id,
    new_workspace_id,
)
from sandlot.providers.base import Sandbox, SandboxSpec
from sandlot.providers.workspaces import WorkspaceStore
from sandlot.testing.provider_suite.harness import Harness, ok

TAG = "0" * 8

# Whatever a file can be: modes, links, times, odd names, holes, and shut folders. No FIFOs and sockets: gVisor
# keeps those in its own memory.
MAKE_FILES = r"""
set -e; umask 022; mkdir -p deep/er "odd name"; printf 'one\n' >one; printf 'two\n' >deep/two
chmod 640 one; chmod 2755 deep; chmod +t deep/er; ln one deep/hard; ln -s ../one deep/soft
ln -s /nowhere/at/all dangling; truncate -s 1M hole; printf x | dd of=hole seek=500000 bs=1 conv=notrunc 2>/dev/null
printf run >"odd name/$(printf 'tab\there')"; touch -d '2001-02-03 04:05:06.5 UTC' one deep/two
touch -h -d '2002-01-01 UTC' dangling; mkdir shut; printf s >shut/inside; chmod 0 shut/inside; chmod 500 shut
touch -d '2003-01-01 UTC' deep/er shut deep "odd name"
"""
# Every path with its type, mode, size, links, time and target, and the content of what can be read.
DESCRIBE = (
    r"find . -mindepth 1 \( -type d -printf '%P d %m %T@\n' -o -printf '%P %y %m %s %n %T@ %l\n' \) | sort;"
    r" find . -type f -readable -print0 | sort -z | xargs -0 sha256sum"
)


@dataclass
class WorkspaceHarness(Harness):
    """``quota_bytes``: how large a workspace may grow, where the store has quotas: at least 48 MiB."""

    quota_bytes: int | None = None
    stored: list[str] = field(default_factory=list)

    @property
    def store(self) -> WorkspaceStore:
        return self.provider.workspaces

    async def create_with(self, workspace_id: str | None) -> Sandbox:
        spec = SandboxSpec(id=new_sandbox_id(), environment=self.environment, workspace=workspace_id)
        self.made.append(spec.id)
        return await self.provider.create(spec)

    def new_snapshot(self) -> str:
        self.stored.append(new_snapshot_id(TAG))
        return self.stored[-1]

    def new_workspace(self) -> str:
        self.stored.append(new_workspace_id())
        return self.stored[-1]

    async def take(self, sandbox: Sandbox) -> str:
        """A snapshot of a sandbox's first workspace."""
        snapshot_id = self.new_snapshot()
        await self.store.snapshot(first_workspace_of(sandbox.id), snapshot_id)
        return snapshot_id

    async def copy_of(self, snapshot_id: str) -> str:
        workspace_id = self.new_workspace()
        await self.store.clone(snapshot_id, workspace_id)
        return workspace_id

    async def clean(self) -> None:
        sandboxes = list(self.made)
        # The last first: it may have the workspace that an earlier one was made with.
        self.made.reverse()
        await super().clean()
        # Snapshots first: what they keep is freed with the last of them.
        ids = [*self.stored, *map(first_workspace_of, sandboxes)]
        for stored_id in sorted(ids, key=is_snapshot_id, reverse=True):
            await self.store.delete(stored_id)
        self.stored.clear()


@pytest.mark.asyncio(loop_scope="session")
class WorkspaceCases:
    @pytest_asyncio.fixture(loop_scope="session")
    async def rig(self, workspace_harness: WorkspaceHarness) -> AsyncIterator[WorkspaceHarness]:
        yield workspace_harness
        await workspace_harness.clean()


def require_snapshots(rig: WorkspaceHarness) -> None:
    if not rig.store.abilities.snapshots:
        pytest.skip(f"the store takes no snapshots: {rig.store.abilities.note}")


def require_swaps(rig: WorkspaceHarness) -> None:
    if not rig.store.abilities.swaps:
        pytest.skip(f"the store cannot swap: {rig.store.abilities.note}")


def require_volumes(rig: WorkspaceHarness) -> None:
    if not rig.store.abilities.volumes:
        pytest.skip(f"the store keeps no volumes: {rig.store.abilities.note}")


def require_quotas(rig: WorkspaceHarness) -> int:
    if not rig.store.abilities.quotas:
        pytest.skip(f"the store has no quotas: {rig.store.abilities.note}")
    assert rig.quota_bytes is not None
    return rig.quota_bytes


async def described(sandbox: Sandbox) -> str:
    """A sandbox's files as text: equal if and only if they are."""
    text = await ok(sandbox, DESCRIBE, timeout_s=120)
    return text if len(text) < 10_000 else hashlib.sha256(text.encode()).hexdigest()

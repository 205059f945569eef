"""The workspace suite: how every provider's workspace store must behave, seen from its sandboxes.

Subclass ``WorkspaceSuite`` in a test module and give it a ``workspace_harness`` fixture. Pytest runs every
case::

    class TestBtrfs(WorkspaceSuite):
        @pytest_asyncio.fixture(loop_scope="session", scope="class")
        @classmethod
        async def workspace_harness(cls): ...

The suite asks a store only for what its ``abilities`` say, and skips the other cases with a reason.
"""

from sandlot.testing.workspace_suite.archives import ArchiveCases
from sandlot.testing.workspace_suite.harness import WorkspaceHarness
from sandlot.testing.workspace_suite.lives import LifeCases
from sandlot.testing.workspace_suite.quotas import QuotaCases
from sandlot.testing.workspace_suite.snapshots import SnapshotCases
from sandlot.testing.workspace_suite.volumes import VolumeCases


class WorkspaceSuite(LifeCases, SnapshotCases, ArchiveCases, QuotaCases, VolumeCases):
    """All cases."""


__all__ = ["WorkspaceHarness", "WorkspaceSuite"]

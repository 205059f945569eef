"""The service conformance suite: how every ``SandboxService`` must behave, seen through the SDK.

Subclass ``ServiceSuite`` in a test module and give it a ``service_harness`` fixture. Pytest runs
every case::

    class TestFake(ServiceSuite):
        @pytest_asyncio.fixture(loop_scope="session", scope="class")
        @classmethod
        async def service_harness(cls): ...

The cases use only commands that bash and the fake's small shell run alike.
"""

from sandlot.testing.over_sync import AsyncOverSync
from sandlot.testing.service_suite.artifacts.keeping import (
    ArtifactCases,
    DeclaredArtifactCases,
    ForeignArtifactCases,
)
from sandlot.testing.service_suite.commands.background import BackgroundCases, TerminalCases
from sandlot.testing.service_suite.commands.execs import ExecCases
from sandlot.testing.service_suite.commands.output import EndsCases, MergedOutputCases
from sandlot.testing.service_suite.commands.policies import PolicyCases
from sandlot.testing.service_suite.commands.shells import ShellCases
from sandlot.testing.service_suite.commands.streams import StreamCases
from sandlot.testing.service_suite.contexts.cells import CellCases
from sandlot.testing.service_suite.contexts.contexts import (
    ContextCases,
    ForeignContextCases,
    NoContextCases,
)
from sandlot.testing.service_suite.expiry import ExpiryCases
from sandlot.testing.service_suite.files import FileCases, FileProblemCases
from sandlot.testing.service_suite.harness import ServiceHarness
from sandlot.testing.service_suite.history import HistoryCases
from sandlot.testing.service_suite.loss import LossCases, SilenceCases
from sandlot.testing.service_suite.network import NetworkCases
from sandlot.testing.service_suite.ports import PortCases
from sandlot.testing.service_suite.recordings import RecordingCases
from sandlot.testing.service_suite.sessions import IdempotencyCases, SessionCases
from sandlot.testing.service_suite.tenants import TenantCases
from sandlot.testing.service_suite.threads import ThreadCases
from sandlot.testing.service_suite.transfers import TransferCases, WatchCases
from sandlot.testing.service_suite.usage import UsageCases
from sandlot.testing.service_suite.volumes.refusals import (
    ForeignVolumeCases,
    NoVolumeCases,
    VolumeStrictnessCases,
)
from sandlot.testing.service_suite.volumes.sharing import VolumeCases
from sandlot.testing.service_suite.whole import ErrorCases, WholeCases
from sandlot.testing.service_suite.workspaces.forks import ForkCases
from sandlot.testing.service_suite.workspaces.hibernation import HibernationCases
from sandlot.testing.service_suite.workspaces.kept_files import KeptFilesCases
from sandlot.testing.service_suite.workspaces.refusals import (
    ForeignSnapshotCases,
    NoSnapshotCases,
    SnapshotStrictnessCases,
)
from sandlot.testing.service_suite.workspaces.snapshots import SnapshotCases
from sandlot.testing.service_suite.workspaces.steps import StepCases


class ServiceSuite(
    SessionCases,
    IdempotencyCases,
    ThreadCases,
    TenantCases,
    ExecCases,
    MergedOutputCases,
    EndsCases,
    StreamCases,
    BackgroundCases,
    TerminalCases,
    ShellCases,
    PolicyCases,
    CellCases,
    ContextCases,
    ForeignContextCases,
    NoContextCases,
    NetworkCases,
    UsageCases,
    FileCases,
    FileProblemCases,
    TransferCases,
    WatchCases,
    PortCases,
    LossCases,
    SilenceCases,
    KeptFilesCases,
    SnapshotCases,
    SnapshotStrictnessCases,
    ForkCases,
    ForeignSnapshotCases,
    NoSnapshotCases,
    StepCases,
    HibernationCases,
    ArtifactCases,
    DeclaredArtifactCases,
    ForeignArtifactCases,
    VolumeCases,
    VolumeStrictnessCases,
    ForeignVolumeCases,
    NoVolumeCases,
    ExpiryCases,
    HistoryCases,
    RecordingCases,
    ErrorCases,
    WholeCases,
):
    """All cases. A service must pass every one."""


__all__ = ["AsyncOverSync", "ServiceHarness", "ServiceSuite"]

"""The directory conformance suite: how every implementation of ``Directory`` must behave.

Subclass ``DirectorySuite`` in a test module and give it a ``directory_harness`` fixture that makes
a new, empty directory for each case. Pytest then runs every case::

    class TestMemory(DirectorySuite):
        @pytest_asyncio.fixture
        async def directory_harness(self): ...
"""

from sandlot.testing.directory_suite.harness import DirectoryHarness
from sandlot.testing.directory_suite.limits import LimitCases
from sandlot.testing.directory_suite.losses import LossCases
from sandlot.testing.directory_suite.only_workers import HibernationCases, OnlyWorkerCases
from sandlot.testing.directory_suite.placing import PlacingCases
from sandlot.testing.directory_suite.sessions import PageCases, SessionCases
from sandlot.testing.directory_suite.settling import SettlingCases
from sandlot.testing.directory_suite.threads import ThreadCases
from sandlot.testing.directory_suite.volumes import VolumeNameCases
from sandlot.testing.directory_suite.workers import WorkerCases


class DirectorySuite(
    WorkerCases,
    PlacingCases,
    OnlyWorkerCases,
    HibernationCases,
    LimitCases,
    ThreadCases,
    SessionCases,
    PageCases,
    LossCases,
    SettlingCases,
    VolumeNameCases,
):
    """All cases. A directory must pass every one."""


__all__ = ["DirectoryHarness", "DirectorySuite"]

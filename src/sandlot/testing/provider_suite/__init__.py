"""The provider conformance suite: how a sandbox must behave, whoever makes it.

Subclass ``ProviderSuite`` in a test module, give it a ``provider_harness`` fixture, and pytest runs every case::

    class TestDockerRunc(ProviderSuite):
        @pytest_asyncio.fixture(loop_scope="session", scope="class")
        @classmethod
        async def provider_harness(cls): ...

Cases that need a program which the image lacks are skipped with a reason.
"""

from sandlot.testing.provider_suite.death import DeathCases
from sandlot.testing.provider_suite.execs import ExecCases
from sandlot.testing.provider_suite.files import FileCases
from sandlot.testing.provider_suite.harness import Harness
from sandlot.testing.provider_suite.limits import LimitCases
from sandlot.testing.provider_suite.output import OutputCases
from sandlot.testing.provider_suite.ports import PortCases
from sandlot.testing.provider_suite.shells import ShellCases


class ProviderSuite(ExecCases, OutputCases, ShellCases, FileCases, PortCases, LimitCases, DeathCases):
    """Every case. A provider passes all of them or says in its documentation which it cannot."""


__all__ = ["Harness", "ProviderSuite"]

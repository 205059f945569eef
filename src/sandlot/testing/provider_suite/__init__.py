"""The provider conformance suite: how every provider's sandboxes must behave.

Subclass ``ProviderSuite`` in a test module and give it a ``provider_harness`` fixture. Pytest runs
every case::

    class TestDockerRunc(ProviderSuite):
        @pytest_asyncio.fixture(loop_scope="session", scope="class")
        @classmethod
        async def provider_harness(cls): ...

The suite skips a case, with a reason, when the image lacks a program that the case needs.
"""

from sandlot.testing.provider_suite.death import DeathCases
from sandlot.testing.provider_suite.execs import ExecCases
from sandlot.testing.provider_suite.files import FileCases
from sandlot.testing.provider_suite.harness import Harness
from sandlot.testing.provider_suite.limits import LimitCases
from sandlot.testing.provider_suite.listeners import ListenerCases
from sandlot.testing.provider_suite.output import OutputCases
from sandlot.testing.provider_suite.ports import PortCases
from sandlot.testing.provider_suite.shells import ShellCases


class ProviderSuite(
    ExecCases, OutputCases, ShellCases, FileCases, PortCases, LimitCases, ListenerCases, DeathCases
):
    """All cases. A provider must pass every one, or document which it cannot."""


__all__ = ["Harness", "ProviderSuite"]

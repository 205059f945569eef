"""The provider suite on every wall and image that we ship."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sandlot.domain.environment import Tier
from sandlot.testing.provider_suite import Harness, ProviderSuite
from tests.docker.conftest import BASE, SLIM, harness_for

pytestmark = pytest.mark.docker


class TestRunc(ProviderSuite):
    @pytest_asyncio.fixture(loop_scope="session", scope="class")
    @classmethod
    async def provider_harness(cls) -> AsyncIterator[Harness]:
        async with harness_for(Tier.RUNC, BASE) as harness:
            yield harness


class TestRunsc(ProviderSuite):
    @pytest_asyncio.fixture(loop_scope="session", scope="class")
    @classmethod
    async def provider_harness(cls) -> AsyncIterator[Harness]:
        async with harness_for(Tier.RUNSC, BASE) as harness:
            yield harness


class TestSlim(ProviderSuite):
    @pytest_asyncio.fixture(loop_scope="session", scope="class")
    @classmethod
    async def provider_harness(cls) -> AsyncIterator[Harness]:
        async with harness_for(Tier.RUNC, SLIM) as harness:
            yield harness

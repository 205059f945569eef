"""What the cases about code share: sessions in an environment with kernels."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sandlot.client.async_session import AsyncSession
from sandlot.testing.service_suite.harness import Cases, ServiceHarness

NO_KERNELS = "this service has no environment with kernels"


class CodeCases(Cases):
    """``coded`` is shared by the cases that leave its contexts usable. ``kernel`` is a case's own."""

    @pytest_asyncio.fixture(loop_scope="session", scope="class")
    @classmethod
    async def coded(cls, service_harness: ServiceHarness) -> AsyncIterator[AsyncSession]:
        if service_harness.coded is None:
            pytest.skip(NO_KERNELS)
        session = await service_harness.client.create(service_harness.coded)
        yield session
        await session.delete()

    @pytest_asyncio.fixture(loop_scope="session")
    async def kernel(self, service_harness: ServiceHarness) -> AsyncIterator[AsyncSession]:
        if service_harness.coded is None:
            pytest.skip(NO_KERNELS)
        session = await service_harness.client.create(service_harness.coded)
        yield session
        await session.delete()

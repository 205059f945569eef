"""The attacks run on each tier, against a real engine, with canaries out and a neighbour beside them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sandlot.domain.environment import Tier
from sandlot.testing.provider_suite import Harness
from tests.attacks.canaries import Watch, watched
from tests.attacks.egress import connects, egress_worker, inside
from tests.docker.conftest import sandbox

# The sandbox is of a module, of the harness below; modules that need another have their own.
__all__ = ["connects", "egress_worker", "inside", "sandbox"]


@pytest_asyncio.fixture(params=["runc", "runsc"], scope="module", loop_scope="session")
async def watch(request: pytest.FixtureRequest) -> AsyncIterator[Watch]:
    """After all attacks of a module: no canary came back, the neighbour answers, this process has not grown."""
    async with watched(Tier(request.param)) as watch:
        yield watch


@pytest.fixture(scope="module")
def harness(watch: Watch) -> Harness:
    """A provider on each tier."""
    return watch.harness

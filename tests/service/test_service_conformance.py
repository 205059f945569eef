"""The service suite on everything that implements the contract, and through both clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import cast

import pytest
import pytest_asyncio

from sandlot.client.async_client import AsyncClient
from sandlot.client.sync.client import Client
from sandlot.config.registry.policies import shipped_policy
from sandlot.domain.callers.principal import OWNER, USER_SCOPES, Principal
from sandlot.domain.environment import Environment, Recipe
from sandlot.domain.errors import SandlotError, Unauthorized
from sandlot.domain.policy.policy import CommandPolicy
from sandlot.domain.policy.tenant_policies import TenantPolicies
from sandlot.domain.service import SandboxService
from sandlot.domain.session import DEFAULT_ENVIRONMENT
from sandlot.testing import FakeService
from sandlot.testing.over_sync import THREADS
from sandlot.testing.service_suite import AsyncOverSync, ServiceHarness, ServiceSuite
from sandlot.testing.service_suite.commands.policies import POLICY
from sandlot.wiring import LocalWorker
from tests.btrfs_storage import btrfs_storage
from tests.service.served import served
from tests.service.workers import CODED, engine_call, worker

MAX_EXECS = 12
KEY = "a-key-for-the-tests-alone"
STRANGERS_KEY = "a-key-of-another-tenant"
POLICED = "policed"
RECIPES = (
    Recipe(Environment(DEFAULT_ENVIRONMENT, "sandlot/base:latest")),
    Recipe(Environment(POLICED, "sandlot/base:latest"), policy=CommandPolicy.of(POLICY)),
)
POLICIES = {policy.name: policy for policy in (CommandPolicy.of(POLICY), shipped_policy("validation"))}
STRANGER = Principal("stranger", USER_SCOPES)


class Callers:
    """Admits the two callers of the suite by their keys."""

    def admit(self, token: bytes, path: str) -> Principal | SandlotError:
        callers = {KEY.encode(): OWNER, STRANGERS_KEY.encode(): STRANGER}
        return callers.get(token) or Unauthorized("Invalid API key.")


def test_no_case_hides_another() -> None:
    """The groups are bases of one class: two cases of one name would be one case."""
    names = Counter(
        name for group in ServiceSuite.__mro__ for name in vars(group) if name.startswith("test_")
    )
    assert [name for name, count in names.items() if count > 1] == []
    assert len(names) >= 120


def fake_harness(
    service: FakeService, client: object, stranger: object, *, direct: SandboxService | None
) -> ServiceHarness:
    async def lose(session_id: str) -> None:
        service.lose(session_id)

    async def freeze(session_id: str) -> None:
        service.freeze(session_id)

    async def thaw(session_id: str) -> None:
        service.thaw(session_id)

    given: dict[str, str | None] = {}
    service._policies = TenantPolicies(POLICIES, given.get)

    return ServiceHarness(
        cast(AsyncClient, client),
        lose,
        MAX_EXECS,
        direct,
        short_s=0.4,
        measures_memory=False,
        freeze=freeze,
        thaw=thaw,
        stranger=cast(AsyncClient, stranger),
        policed=POLICED,
        give_policy=partial(given.__setitem__, OWNER.tenant),
        serve_port=service.serve_port,
        abilities=service._snapshots.store.abilities,
        coded=DEFAULT_ENVIRONMENT,
    )


def worker_harness(
    service: LocalWorker, client: AsyncClient, stranger: AsyncClient, coded: str | None = CODED
) -> ServiceHarness:
    async def lose(session_id: str) -> None:
        await engine_call(service, "rm", session_id, "--force")

    given: dict[str, str | None] = {}
    service._parts.policies._tenants = replace(service._tenant_policies, name_of=given.get)
    return ServiceHarness(
        client,
        lose,
        MAX_EXECS,
        client.service,
        short_s=1.0,
        freeze=partial(engine_call, service, "pause"),
        thaw=partial(engine_call, service, "unpause"),
        stranger=stranger,
        policed=POLICED,
        give_policy=partial(given.__setitem__, OWNER.tenant),
        abilities=service._provider.workspaces.abilities,
        coded=coded,
    )


def test_a_group_asks_for_nothing_on_behalf_of_all() -> None:
    """A mark of a group would be one of the whole suite: its fixtures would skip every case."""
    marked = [mark for group in ServiceSuite.__mro__ for mark in vars(group).get("pytestmark", ())]
    assert {mark.name for mark in marked} == {"asyncio"}


class TestFake(ServiceSuite):
    @pytest_asyncio.fixture(loop_scope="session", scope="class")
    @classmethod
    async def service_harness(cls) -> AsyncIterator[ServiceHarness]:
        service = FakeService(recipes=RECIPES, max_execs=MAX_EXECS)
        stranger = AsyncClient(service=service.acting_for(STRANGER))
        async with AsyncClient(service=service) as client:
            yield fake_harness(service, client, stranger, direct=service)
        await service.close()


class TestSyncClient(ServiceSuite):
    """The facade without await, and the server and the client below it, without Docker."""

    @pytest_asyncio.fixture(loop_scope="session", scope="class")
    @classmethod
    async def service_harness(cls) -> AsyncIterator[ServiceHarness]:
        service = FakeService(recipes=RECIPES, max_execs=MAX_EXECS)
        with ThreadPoolExecutor(THREADS) as threads:
            async with (
                served(service, tokens=Callers()) as url,
                AsyncOverSync(Client(url, api_key=KEY), threads) as client,
                AsyncClient(url, api_key=STRANGERS_KEY) as stranger,
            ):
                yield fake_harness(service, client, stranger, direct=None)
        await service.close()


@pytest.mark.docker
class TestWorker(ServiceSuite):
    @pytest_asyncio.fixture(loop_scope="session", scope="class")
    @classmethod
    async def service_harness(cls) -> AsyncIterator[ServiceHarness]:
        async with (
            worker(max_execs=MAX_EXECS, policed=(POLICED, POLICY), coded=True) as service,
            AsyncClient(service=service) as client,
        ):
            yield worker_harness(service, client, AsyncClient(service=service.acting_for(STRANGER)))


@pytest.mark.docker
class TestWorkerOverHttp(ServiceSuite):
    @pytest.fixture
    def takes_snapshots(self) -> None:
        pytest.skip("TestWorker takes them of volumes, and TestWorkerOnBtrfs over HTTP")

    @pytest_asyncio.fixture(loop_scope="session", scope="class")
    @classmethod
    async def service_harness(cls) -> AsyncIterator[ServiceHarness]:
        async with (
            worker(max_execs=MAX_EXECS, policed=(POLICED, POLICY), coded=True) as service,
            served(service, tokens=Callers()) as url,
            AsyncClient(url, api_key=KEY) as client,
            AsyncClient(url, api_key=STRANGERS_KEY) as stranger,
        ):
            yield worker_harness(service, client, stranger)


@pytest.mark.docker
class TestWorkerOnBtrfs(ServiceSuite):
    """Workspaces are on btrfs, with quotas and cheap snapshots. The other workers have Docker volumes.

    And no environment has kernels: what its sessions read then.
    """

    @pytest_asyncio.fixture(loop_scope="session", scope="class")
    @classmethod
    async def service_harness(cls) -> AsyncIterator[ServiceHarness]:
        with btrfs_storage() as storage:
            async with (
                worker(max_execs=MAX_EXECS, policed=(POLICED, POLICY), storage=storage) as service,
                served(service, tokens=Callers()) as url,
                AsyncClient(url, api_key=KEY) as client,
                AsyncClient(url, api_key=STRANGERS_KEY) as stranger,
            ):
                yield worker_harness(service, client, stranger, coded=None)

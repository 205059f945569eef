"""Command policies: what those of an environment and of a tenant do to every way of starting a command."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio

from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import ApprovalRequired, NotFound, PolicyDenied
from sandlot.domain.ids import new_exec_id
from sandlot.testing.service_suite.harness import Cases, ServiceHarness, check_three_fields

# The policy that the harness's ``policed`` environment must have, as a registry declares it.
POLICY: dict[str, Any] = {
    "name": "suite",
    "description": "For the conformance suite.",
    "rules": [
        {"name": "no-rm", "ruling": "deny", "program": "rm", "reason": "deletes", "instead": "Use mv."},
        {"name": "touch", "ruling": "ask", "program": "touch", "reason": "creates files"},
        {"name": "preload", "ruling": "deny", "assigns": "LD_PRELOAD", "reason": "loads code"},
    ],
}

Start = Callable[[AsyncSession, str, dict[str, Any]], Awaitable[object]]


async def _run(session: AsyncSession, command: str, options: dict[str, Any]) -> object:
    return await session.run(command, **options)


async def _run_words(session: AsyncSession, command: str, options: dict[str, Any]) -> object:
    return await session.run(["sh", "-c", command], **options)


async def _start(session: AsyncSession, command: str, options: dict[str, Any]) -> object:
    return await (await session.start(command, **options)).wait()


async def _stream(session: AsyncSession, command: str, options: dict[str, Any]) -> object:
    return [event async for event in session.stream(command, **options)]


async def _in_shell(session: AsyncSession, command: str, options: dict[str, Any]) -> object:
    return await session.run(command, shell="main", **options)


WAYS: list[Start] = [_run, _run_words, _start, _stream, _in_shell]


class PolicyCases(Cases):
    @pytest_asyncio.fixture(loop_scope="session")
    @classmethod
    async def policed(cls, service_harness: ServiceHarness) -> AsyncIterator[AsyncSession]:
        if service_harness.policed is None:
            pytest.skip("this service has no environment with a policy")
        session = await service_harness.client.create(service_harness.policed)
        yield session
        await session.delete()

    @pytest.mark.parametrize("way", WAYS)
    async def test_what_the_policy_denies_does_not_run(self, policed: AsyncSession, way: Start) -> None:
        for options in ({}, {"approved": True}):
            with pytest.raises(PolicyDenied) as caught:
                await way(policed, "echo x > here; rm here", options)
            check_three_fields(caught.value)
            assert (caught.value.retryable, caught.value.may_have_executed) == (False, False)
            details = caught.value.details
            assert (details["policy"], details["rule"]) == ("suite", "no-rm")
            assert (details["words"], details["allowed"]) == (["rm", "here"], "Use mv.")
        assert not await policed.files.exists("here")

    @pytest.mark.parametrize("way", WAYS)
    async def test_what_the_policy_asks_about_runs_once_approved(
        self, policed: AsyncSession, way: Start
    ) -> None:
        with pytest.raises(ApprovalRequired) as caught:
            await way(policed, "touch there", {})
        check_three_fields(caught.value)
        assert (caught.value.retryable, caught.value.may_have_executed) == (False, False)
        assert caught.value.details["rule"] == "touch"
        assert not await policed.files.exists("there")
        await way(policed, "touch there", {"approved": True})
        assert await policed.files.exists("there")

    async def test_a_refused_exec_is_unknown_and_its_id_is_free(self, policed: AsyncSession) -> None:
        exec_id = new_exec_id()
        with pytest.raises(PolicyDenied):
            await policed.run("rm x", exec_id=exec_id)
        with pytest.raises(NotFound):
            await (await policed.exec(exec_id)).status()
        assert (await policed.run("echo fine", exec_id=exec_id)).stdout == "fine\n"

    async def test_an_approved_command_that_is_sent_again_returns_its_result(
        self, policed: AsyncSession
    ) -> None:
        exec_id = new_exec_id()
        first = await policed.run("touch a; echo x", exec_id=exec_id, approved=True)
        again = await policed.run("touch a; echo x", exec_id=exec_id, approved=True)
        assert (first.exec_id, first.stdout) == (again.exec_id, again.stdout)

    async def test_variables_of_a_command_are_judged(self, policed: AsyncSession) -> None:
        with pytest.raises(PolicyDenied) as caught:
            await policed.run("echo x", env={"LD_PRELOAD": "x.so"})
        assert caught.value.details["rule"] == "preload"

    async def test_the_catalogue_names_the_policy(self, service_harness: ServiceHarness) -> None:
        if service_harness.policed is None:
            pytest.skip("this service has no environment with a policy")
        catalogue = await service_harness.client.catalogue()
        policies = {environment.name: environment.policy for environment in catalogue.environments}
        assert policies[service_harness.policed] == "suite"
        assert [name for name, policy in policies.items() if policy] == [service_harness.policed]

    # --- of a tenant --------------------------------------------------------------------------

    @pytest.fixture
    def give_policy(self, service_harness: ServiceHarness) -> Iterator[Callable[[str | None], None]]:
        if service_harness.give_policy is None:
            pytest.skip("this service has no policies of tenants")
        yield service_harness.give_policy
        service_harness.give_policy(None)

    @pytest.mark.parametrize("way", WAYS)
    async def test_a_tenants_policy_applies_where_the_environment_has_none(
        self, fresh: AsyncSession, give_policy: Callable[[str | None], None], way: Start
    ) -> None:
        give_policy("suite")
        with pytest.raises(PolicyDenied) as caught:
            await way(fresh, "rm here", {"approved": True})
        check_three_fields(caught.value)
        assert (caught.value.details["policy"], caught.value.details["rule"]) == ("suite", "no-rm")
        with pytest.raises(ApprovalRequired):
            await way(fresh, "touch there", {})
        assert not await fresh.files.exists("there")
        await way(fresh, "touch there", {"approved": True})
        give_policy(None)
        await way(fresh, "rm there", {})
        assert not await fresh.files.exists("there")

    async def test_a_tenants_policy_is_no_others(
        self, service_harness: ServiceHarness, give_policy: Callable[[str | None], None]
    ) -> None:
        if service_harness.stranger is None:
            pytest.skip("this service has one tenant")
        give_policy("suite")
        async with service_harness.stranger.create() as theirs:
            assert (await theirs.run("echo > x; rm x")).ok

    async def test_the_stricter_of_both_policies_decides(
        self, policed: AsyncSession, give_policy: Callable[[str | None], None]
    ) -> None:
        give_policy("validation")
        with pytest.raises(PolicyDenied) as caught:
            await policed.run("touch x; rm -rf /etc", approved=True)
        assert caught.value.details["policy"] == "suite"
        with pytest.raises(PolicyDenied) as caught:
            await policed.run("touch x; curl example.com | sh", approved=True)
        assert caught.value.details["policy"] == "validation"
        assert {each["policy"] for each in caught.value.details["findings"]} == {"validation", "suite"}
        with pytest.raises(ApprovalRequired) as asked:
            await policed.run("touch x")
        assert asked.value.details["policy"] == "suite"
        assert (await policed.run("touch x", approved=True)).ok

    async def test_a_policy_that_is_missing_lets_nothing_run(
        self, fresh: AsyncSession, give_policy: Callable[[str | None], None]
    ) -> None:
        give_policy("not-in-the-registry")
        with pytest.raises(PolicyDenied, match="not-in-the-registry") as caught:
            await fresh.run("true", approved=True)
        check_three_fields(caught.value)
        assert (caught.value.retryable, caught.value.may_have_executed) == (False, False)

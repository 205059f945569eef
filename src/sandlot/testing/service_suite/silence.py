"""A sandbox that is there and does not answer: every call ends, it is told of, and used again when it answers."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import SandboxUnresponsive
from sandlot.domain.session import SessionState
from sandlot.testing.eventually import eventually
from sandlot.testing.service_suite.harness import Cases, ServiceHarness, check_three_fields, ok

# Seconds in which a call on it ends: its timeout, the grace, and what a busy machine takes.
ENDS_WITHIN = 60.0
# Seconds until it is known by all to be silent, or to answer again.
KNOWN_WITHIN = 60.0


class SilenceCases(Cases):
    async def test_silent_sandbox_and_back(
        self, service_harness: ServiceHarness, fresh: AsyncSession
    ) -> None:
        """O1."""

        async def is_shown_as(state: SessionState) -> None:
            async def shown() -> bool:
                return (await fresh.refresh()).state is state

            await eventually(shown, KNOWN_WITHIN, f"the session is {state}")

        if service_harness.freeze is None or service_harness.thaw is None:
            pytest.skip("sandboxes of this service cannot be made to stand still")
        clock = asyncio.get_running_loop().time
        await ok(fresh, "echo kept > f")
        await service_harness.freeze(fresh.id)
        try:
            began = clock()
            with pytest.raises(SandboxUnresponsive) as caught:
                await fresh.run("true", timeout_s=1)
            assert clock() - began < ENDS_WITHIN
            check_three_fields(caught.value)
            assert caught.value.retryable
            await is_shown_as(SessionState.UNRESPONSIVE)
            with pytest.raises(SandboxUnresponsive) as refused:
                await fresh.execs()
            assert not refused.value.may_have_executed
        finally:
            await service_harness.thaw(fresh.id)
        await is_shown_as(SessionState.ACTIVE)
        assert await ok(fresh, "cat f") == "kept\n"

    async def test_silent_sandbox_is_given_up_on_request(
        self, service_harness: ServiceHarness, fresh: AsyncSession
    ) -> None:
        async def silent() -> bool:
            return (await fresh.refresh()).state is SessionState.UNRESPONSIVE

        if service_harness.freeze is None:
            pytest.skip("sandboxes of this service cannot be made to stand still")
        await service_harness.freeze(fresh.id)
        with pytest.raises(SandboxUnresponsive):
            await fresh.run("true", timeout_s=1)
        await eventually(silent, KNOWN_WITHIN, "the session is unresponsive")
        await fresh.recreate()
        assert (fresh.generation, fresh.state) == (2, SessionState.ACTIVE)
        assert fresh.info.loss is not None
        assert await ok(fresh, "echo anew") == "anew\n"

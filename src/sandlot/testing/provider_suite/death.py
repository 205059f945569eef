"""A sandbox's life and end: worker restarts, pauses, destruction, and sandboxes that are gone."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sandlot.domain.errors import ImageMissing, NotFound, SandboxLost
from sandlot.domain.execution import ExecRequest, Output
from sandlot.domain.ids import new_sandbox_id
from sandlot.providers.base import Sandbox, SandboxSpec
from sandlot.testing.eventually import eventually
from sandlot.testing.provider_suite.harness import Cases, Harness, ok, run


class DeathCases(Cases):
    async def test_found_by_listing(self, provider_harness: Harness) -> None:
        spec = SandboxSpec(
            id=new_sandbox_id(), environment=provider_harness.environment, labels={"who": "me"}
        )
        provider_harness.made.append(spec.id)
        await provider_harness.provider.create(spec)
        found = {f.id: f for f in await provider_harness.provider.list()}[spec.id]
        assert (found.state, found.tier, found.labels["who"]) == ("running", spec.environment.tier, "me")
        await provider_harness.provider.destroy(spec.id)
        assert spec.id not in {f.id for f in await provider_harness.provider.list()}

    async def test_an_image_is_the_same_for_all_who_ask(self, provider_harness: Harness) -> None:
        provider, environment = provider_harness.provider, provider_harness.environment
        image = await provider.image_of(environment)
        assert image
        assert await provider.image_of(replace(environment, name="another")) == image

    async def test_it_says_whether_an_image_is_there(self, provider_harness: Harness) -> None:
        provider, environment = provider_harness.provider, provider_harness.environment
        absent = replace(environment, name="absent", image="sandlot.invalid/no-such-image:none")
        await provider.prepare(environment)
        if await provider.check_image(environment):
            with pytest.raises(ImageMissing, match="no-such-image"):
                await provider.check_image(absent)
        else:  # it cannot tell
            assert not await provider.check_image(absent)

    async def test_destroy_twice(self, provider_harness: Harness) -> None:
        sandbox = await provider_harness.create()
        await provider_harness.provider.destroy(sandbox.id)
        await provider_harness.provider.destroy(sandbox.id)
        with pytest.raises(SandboxLost):
            await run(sandbox, "true")

    async def test_destroy_ends_what_is_under_way(self, provider_harness: Harness) -> None:
        sandbox = await provider_harness.create()
        ran = asyncio.create_task(run(sandbox, "sleep 60", timeout_s=60))

        async def begun() -> bool:
            return any(known.running for known in await sandbox.list_execs())

        await eventually(begun, 20, "the command runs")
        await provider_harness.provider.destroy(sandbox.id)
        with pytest.raises(SandboxLost, match="destroyed") as caught:
            await asyncio.wait_for(ran, 30)
        assert caught.value.may_have_executed
        assert "destroyed" in await asyncio.wait_for(sandbox.wait_lost(), 30)

    async def test_pause(self, fresh: Sandbox, provider_harness: Harness) -> None:
        execution = await fresh.start(ExecRequest(command="for i in $(seq 20); do echo $i; sleep 0.1; done"))
        await asyncio.sleep(0.5)
        await provider_harness.provider.pause(fresh.id)
        asked = asyncio.create_task(fresh.health())
        await asyncio.sleep(0.5)
        assert not asked.done(), "nothing moves in it"
        await provider_harness.provider.unpause(fresh.id)
        await asyncio.wait_for(asked, 30)
        assert (await execution.result()).output == "".join(f"{i}\n" for i in range(1, 21)).encode()

    async def test_restarted_worker_adopts(self, provider_harness: Harness) -> None:
        """The exec continues without a worker. The next one gets every byte and the same result."""
        sandbox = await provider_harness.create()
        script = "echo run >>counter; for i in $(seq 30); do echo $i; sleep 0.1; done; exit 3"
        execution = await sandbox.start(ExecRequest(command=script, exec_id="across", timeout_s=60))
        async for event in execution.events():
            if isinstance(event, Output):
                break
        provider_harness.provider = await provider_harness.reopen()
        adopted = await provider_harness.provider.adopt(sandbox.id)
        result = await asyncio.wait_for((await adopted.attach("across")).result(), 30)
        assert (result.output, result.exit_code) == ("".join(f"{i}\n" for i in range(1, 31)).encode(), 3)
        again = await adopted.run(ExecRequest(command=script, exec_id="across", timeout_s=60))
        assert again.output == result.output
        assert await ok(adopted, "cat counter") == "run\n"
        assert await adopted.files.read_bytes("counter") == b"run\n"

    async def test_adopting_what_is_gone(self, provider_harness: Harness) -> None:
        with pytest.raises(NotFound):
            await provider_harness.provider.adopt(new_sandbox_id())

    async def test_missing_image_is_an_error(self, provider_harness: Harness) -> None:
        environment = replace(
            provider_harness.environment, name="absent", image="sandlot.invalid/no-such-image:none"
        )
        spec = SandboxSpec(id=new_sandbox_id(), environment=environment)
        with pytest.raises(ImageMissing, match="no-such-image"):
            await provider_harness.provider.create(spec)
        assert spec.id not in {found.id for found in await provider_harness.provider.list()}

"""Files that outlive sandboxes: whatever becomes of a sandbox, its session's files are in the next one."""

from __future__ import annotations

import pytest

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import SandboxLost, SandboxUnresponsive
from sandlot.domain.session import KEPT_FILES, SessionState
from sandlot.testing.eventually import eventually
from sandlot.testing.service_suite.harness import Cases, ServiceHarness, deleted_afterwards, ok, unique
from sandlot.testing.service_suite.loss import KNOWN_WITHIN, lose
from sandlot.testing.service_suite.workspaces.trees import PATHS, plant, shown


class KeptFilesCases(Cases):
    async def test_files_outlive_a_lost_sandbox(
        self, service_harness: ServiceHarness, fresh: AsyncSession
    ) -> None:
        planted = await plant(fresh)
        assert set(PATHS) <= set(planted)
        await ok(fresh, "echo gone >/tmp/gone")
        await lose(service_harness, fresh)
        with pytest.raises(SandboxLost, match="its files") as caught:
            await fresh.run("true")
        assert KEPT_FILES in caught.value.details["loss"]["kept"]
        await fresh.recreate()
        loss = fresh.info.loss
        assert loss is not None
        assert KEPT_FILES in loss.kept
        assert "files in /tmp" in loss.lost
        assert await shown(fresh) == planted
        assert not await fresh.files.exists("/tmp/gone")
        assert await ok(fresh, "cat folder/link | wc -c; sh <program") == "9000\nruns\n"

    async def test_files_outlive_every_sandbox(
        self, service_harness: ServiceHarness, fresh: AsyncSession
    ) -> None:
        for generation in (1, 2, 3):
            await ok(fresh, f"echo {generation} >>generations")
            await lose(service_harness, fresh)
            await fresh.recreate()
        assert await fresh.files.read_text("generations") == "1\n2\n3\n"
        status = await fresh.workspace.status()
        assert status.workspace == fresh.info.workspace

    async def test_files_of_a_lost_thread(self, service_harness: ServiceHarness, client: AsyncClient) -> None:
        thread = unique()
        async with deleted_afterwards(client.thread(thread)) as session:
            await session.files.write("kept", b"kept")
            await lose(service_harness, session)
            result = await client.run_in_thread(thread, "cat kept", recreate_lost=True)
            assert (result.output, result.generation) == ("kept", 2)

    async def test_files_of_a_sandbox_that_is_given_up(
        self, service_harness: ServiceHarness, fresh: AsyncSession
    ) -> None:
        async def silent() -> bool:
            return (await fresh.refresh()).state is SessionState.UNRESPONSIVE

        if service_harness.freeze is None:
            pytest.skip("sandboxes of this service cannot be made to stand still")
        await fresh.files.write("kept", b"kept")
        await service_harness.freeze(fresh.id)
        with pytest.raises(SandboxUnresponsive):
            await fresh.run("true", timeout_s=1)
        await eventually(silent, KNOWN_WITHIN, "the session is unresponsive")
        await fresh.recreate()
        assert await fresh.files.read("kept") == b"kept"

    async def test_workspace_status(self, service_harness: ServiceHarness, fresh: AsyncSession) -> None:
        abilities = service_harness.abilities
        await fresh.files.write("large", bytes(100_000))
        status = await fresh.workspace.status()
        assert status.workspace == fresh.info.workspace
        assert status.store is abilities.kind
        assert bool(status.note) == (not (abilities.quotas and abilities.snapshots))
        assert status.snapshots == 0
        if not abilities.quotas:
            assert status.workspace.quota_bytes is None

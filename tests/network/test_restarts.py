"""A worker that is restarted serves its sessions' networks again, by the same policies."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from sandlot.client.async_client import AsyncClient
from sandlot.testing.eventually import eventually
from tests.network.conftest import open_worker
from tests.unit.network.rig import OK, answering, outside

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]


async def test_policies_and_grants_hold_again(names: list[str], environment: str) -> None:
    data_dir = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    service = await open_worker(data_dir, keep_sessions=True)
    try:
        async with outside(answering(OK)) as host:
            entry = f"a.test:{host.port}"
            client = AsyncClient(service=service)
            session = await client.create(environment, network=[entry])
            await session.network.allow(f"b.test:{host.port}", for_s=600)
            await session.network.forward(7000, entry)
            before = await session.network.status()
            await service.close()
            service = await open_worker(data_dir, keep_sessions=True)
            again = await AsyncClient(service=service).get(session.id)
            urls = (f"http://a.test:{host.port}", f"http://b.test:{host.port}", "http://127.0.0.1:7000")

            async def all_answer() -> bool:
                results = [await again.run(f"curl -fsS -m 20 {url}") for url in urls]
                return [result.stdout for result in results] == ["hello"] * 3

            await eventually(all_answer, 20, "the listeners are back")
            after = await again.network.status()
            assert (after.policy, after.grants, after.forwards) == (
                before.policy,
                before.grants,
                before.forwards,
            )
            assert (await again.run("curl -fsS http://c.test")).denied
            await again.delete()
    finally:
        await service.close()
        shutil.rmtree(data_dir, ignore_errors=True)

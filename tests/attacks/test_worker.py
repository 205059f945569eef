"""2, 99: sandboxes as a worker hands them out, whichever way they came to be and whoever had one before."""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sandlot import AsyncClient, AsyncSession, LimitChange
from sandlot.domain.capacity.limits import MIB
from sandlot.testing.eventually import eventually
from sandlot.wiring import local_service
from tests.docker.conftest import docker
from tests.docker.test_golden import ENGINE, GOLDEN, inspected

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

TIERS = {"base": "runc", "gvisor": "runsc"}
SHM_BYTES = 16 * MIB
HIDING_PLACES = ("/dev/shm", "/tmp", "/workspace")


class Worker:
    """One data folder, and the lives of a worker on it."""

    def __init__(self) -> None:
        self.owner = f"test-{secrets.token_hex(4)}"
        self.data_dir = Path(tempfile.mkdtemp(prefix="sandlot-test-"))

    @asynccontextmanager
    async def life(self, *, keep: bool = False) -> AsyncIterator[AsyncClient]:
        service = await local_service(
            keep_sessions=keep,
            worker_id=self.owner,
            data_dir=self.data_dir,
            pool_size=1,
            min_pool_size=1,
            overcommit_memory=100,
            overcommit_cpus=1000,
        )
        try:
            async with AsyncClient(service=service) as client:
                yield client
        finally:
            await service.close()

    def inspected(self, session: AsyncSession) -> dict[str, Any]:
        sandbox_id = session.info.sandbox_id
        assert sandbox_id is not None
        image = docker("inspect", f"sandlot-{sandbox_id}")[0]["Image"]
        plain = inspected(sandbox_id, str(self.data_dir / "docker"), self.owner, image)
        del plain["Config"]["Labels"]  # which environment it is of, and what that was made from
        return plain


@pytest_asyncio.fixture(loop_scope="session")
async def worker() -> AsyncIterator[Worker]:
    worker = Worker()
    yield worker
    async with worker.life() as client:  # what a failed test has kept
        async for session in client.sessions():
            await session.delete()
    shutil.rmtree(worker.data_dir, ignore_errors=True)


@pytest.mark.parametrize("environment", TIERS)
async def test_02_every_way_to_a_sandbox_gives_the_same(worker: Worker, environment: str) -> None:
    """From the pool, made for this session alone, adopted by the worker's next life: what the golden file says."""
    async with worker.life(keep=True) as client:
        pooled = await client.create(environment=environment)
        cold = await client.create(environment=environment, limits=LimitChange(shm_bytes=SHM_BYTES))
        found = {"pool": worker.inspected(pooled), "cold": worker.inspected(cold)}
    async with worker.life() as client:
        adopted = await client.get(pooled.id)
        await adopted.run("true")
        assert adopted.info.sandbox_id == pooled.info.sandbox_id
        found["adopted"] = worker.inspected(adopted)
        for session in (pooled, cold):
            await (await client.get(session.id)).delete()
    assert found["cold"]["HostConfig"]["ShmSize"] == SHM_BYTES
    found["cold"]["HostConfig"]["ShmSize"] = found["pool"]["HostConfig"]["ShmSize"]
    expected = found["pool"]
    if str(docker("version", "--format", "{{.Server.Version}}")).startswith(ENGINE):
        expected = json.loads((GOLDEN / f"inspect-{TIERS[environment]}.json").read_text())
        del expected["Config"]["Labels"]
    assert found == dict.fromkeys(found, expected)


@pytest.mark.parametrize("environment", TIERS)
async def test_99_a_sandbox_is_used_once(worker: Worker, environment: str) -> None:
    """Of whoever had one before nothing is left: no container, no file, no memory."""
    async with worker.life() as client:
        had: set[str | None] = set()
        for _ in range(3):
            session = await client.create(environment=environment)
            assert session.info.sandbox_id not in had
            had.add(session.info.sandbox_id)
            names = (await session.run(f"ls -A {' '.join(HIDING_PLACES)}; ls /dev/mqueue; ipcs -a")).output
            assert "left" not in names
            hide = "; ".join(f"echo secret >{place}/left" for place in HIDING_PLACES)
            assert (await session.run(hide)).exit_code == 0
            await session.delete()
        ours = ("ps", "-a", "--filter", f"label=sandlot.owner={worker.owner}")

        def gone() -> bool:
            return not had & set(docker(*ours, "--format", '{{.Label "sandlot.sandbox"}}').split())

        await eventually(gone, 60, "what was deleted is removed")

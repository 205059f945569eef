"""Code contexts in sandboxes at E2B, whose template has kernels, beside the same in sandboxes on Docker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from sandlot import AsyncClient
from sandlot.domain.errors import Unsupported
from tests.code.conftest import declare, environment, kernel_image
from tests.e2b_provider.conftest import SERVER_KEY, clean_worker, worker_at
from tests.faults.rig import ServerProcess

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]

FAILING = "def f():\n    raise ValueError('no')\nf()"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """In the place of E2B's cloud. Only its template ``code`` has kernels."""
    kernel_image()
    bare = {"name": "base", "description": "x", "image": "sandlot/base"}
    registry = declare(tmp_path_factory.mktemp("cloud"), bare, environment("code"))
    server = ServerProcess(api_key=SERVER_KEY, registry=registry, orphan_grace_s="30")
    try:
        asyncio.run(server.start())
        yield server
    finally:
        asyncio.run(server.clean())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(
    cloud: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServerProcess]:
    with_kernels = {
        "name": "cloud-code",
        "description": "At the other server, with kernels.",
        "image": "code",
        "provider": "e2b",
        "contexts": ["python"],
        "pool": {"size": 1, "min": 1, "max": 1},
    }
    registry = declare(tmp_path_factory.mktemp("worker"), environment("code"), with_kernels)
    server = worker_at(cloud, registry, queue_timeout_s="120")
    try:
        await server.start()
        yield server
    finally:
        await clean_worker(server, cloud)


@pytest_asyncio.fixture(loop_scope="module")
async def client(worker: ServerProcess) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(worker.url) as client:
        yield client


@pytest.mark.parametrize("name", ["code", "cloud-code"])
async def test_the_same_code_runs_on_both(client: AsyncClient, name: str) -> None:
    """One word differs. Everything that a program sees is the same."""
    async with client.create(name, env={"TOKEN": "bound"}) as session:
        first = await session.code.run("import os\nprint(os.environ['TOKEN'])\nx = 40", timeout_s=60)
        assert (first.ok, first.stdout) == (True, "bound\n")
        second = await session.code.run("x + 2", exec_id="once")
        again = await session.code.run("x + 2", exec_id="once")
        assert (second.text, again.execution_count) == ("42", second.execution_count)
        failed = await session.code.run(FAILING)
        assert failed.error is not None
        assert (failed.error.name, failed.error.value) == ("ValueError", "no")
        assert (await session.code.run("while True: pass", timeout_s=1)).timed_out
        assert (await session.code.run("x")).text == "40"
        other = await session.code.create("python", id="other")
        assert (await other.run("'x' in globals()")).text == "False"
        assert (await session.code.run("echo $0", context="bash")).ok
        assert {context.id for context in await session.code.contexts()} == {"python", "other", "bash"}
        assert "python: x + 2" in {known.command for known in await session.execs()}


async def test_variables_outlive_the_worker(worker: ServerProcess) -> None:
    async with AsyncClient(worker.url) as client:
        session = await client.create("cloud-code")
        await session.code.run("kept = 'still here'", timeout_s=60)
        await worker.kill()
        await worker.start()
        found = await client.get(session.id)
        assert (await found.code.run("kept", timeout_s=60)).text == "'still here'"
        await found.delete()


async def test_a_template_without_kernels_is_told(client: AsyncClient) -> None:
    async with client.create("cloud") as session:
        with pytest.raises(Unsupported, match=r"no kernels.*such as cloud-code"):
            await session.code.run("1")

"""A worker with environments on Docker and at E2B, side by side. E2B's part is played by our own server."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from sandlot import AsyncClient, Lifecycle
from sandlot.domain.capacity.limits import MIB, LimitChange
from sandlot.domain.errors import InvalidRequest, SandboxLost, SandlotError, Unsupported
from sandlot.domain.session import SessionState
from sandlot.testing.eventually import eventually
from tests.e2b_provider.conftest import E2B_KEY, SERVER_KEY, clean_worker, cloud_client, worker_at
from tests.faults.rig import ServerProcess

COUNTING = "echo run >>n; for i in $(seq 60); do echo $i; sleep 0.1; done"
# Two servers, and an agent that is sent through one of them to each sandbox: beside other tests it takes minutes.
pytestmark = [pytest.mark.docker, pytest.mark.alone, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(
    e2b_cloud: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServerProcess]:
    server = worker_at(e2b_cloud, tmp_path_factory.mktemp("registry"))
    try:
        await server.start()
        yield server
    finally:
        await clean_worker(server, e2b_cloud)


@pytest_asyncio.fixture(loop_scope="module")
async def client(worker: ServerProcess) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(worker.url) as client:
        yield client


@pytest.mark.parametrize("environment", ["base", "cloud"])
async def test_the_same_program_runs_on_both(client: AsyncClient, environment: str) -> None:
    """One word differs. Everything that a program sees is the same."""
    session = await client.create(environment, env={"TOKEN": "bound"})
    await session.files.write("a.txt", b"hello\n")
    assert (await session.run("cat a.txt; pwd; echo $TOKEN")).stdout == "hello\n/workspace\nbound\n"
    await session.run("cd /tmp && X=1", shell="s")
    assert (await session.run("echo $PWD $X", shell="s")).stdout == "/tmp 1\n"
    first = await session.run("echo run >>count; exit 3", exec_id="once")
    again = await session.run("echo run >>count; exit 3", exec_id="once")
    assert (first.exit_code, again.exit_code) == (3, 3)
    assert await session.files.read("count") == b"run\n"
    assert (await session.run("sleep 30", timeout=0.5)).timed_out
    denied = await session.run("curl -sS -f -m 5 http://example.com", timeout=20)
    assert "example.com" in str(denied.denied)
    await session.delete()


async def test_what_e2b_cannot_do_is_refused(client: AsyncClient) -> None:
    session = await client.create("cloud")
    for call in (session.hibernate(), session.workspace.snapshot()):
        with pytest.raises(Unsupported, match="keeps files with their sandbox only"):
            await call
    await session.delete()
    small, large = (LimitChange(memory_bytes=size * MIB) for size in (256, 1024))
    for asked in ({"limits": small}, {"limits": large}, {"on_idle": "hibernate"}):
        with pytest.raises(Unsupported, match="environment of the provider docker"):
            await client.create("cloud", **asked)


async def test_a_sandbox_that_e2b_ends_is_reported_as_lost(
    client: AsyncClient, e2b_cloud: ServerProcess
) -> None:
    session = await client.create("cloud")
    await session.files.write("gone.txt", b"x")
    async with cloud_client(e2b_cloud) as cloud:
        async for remote in cloud.sessions():
            if session.info.sandbox_id in str(remote.info.metadata):
                await remote.delete()

    async def lost() -> bool:
        return (await client.get(session.id)).info.state is SessionState.LOST

    await eventually(lost, 30, "the loss is reported")
    found = await client.get(session.id)
    assert found.info.loss is not None
    assert "E2B" in found.info.loss.reason
    assert not any("/workspace" in kept for kept in found.info.loss.kept)
    with pytest.raises(SandboxLost):
        await found.run("true")
    await found.recreate()
    assert (await found.run("ls /workspace/gone.txt")).exit_code != 0
    await found.delete()


async def test_a_killed_worker_adopts_and_shows_no_key(
    worker: ServerProcess, e2b_cloud: ServerProcess
) -> None:
    async with AsyncClient(worker.url) as client:
        session = await client.create("cloud")
        await session.start(COUNTING, exec_id="across")
        await asyncio.sleep(1)
        await worker.kill()
        await worker.start()
        again = await client.get(session.id)
        result = await again.run(COUNTING, exec_id="across")
        assert result.stdout == "".join(f"{i}\n" for i in range(1, 61))
        assert await again.files.read("n") == b"run\n"
        seen = (await again.run("env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; ps aux")).stdout
        printed = await again.run(f"echo {E2B_KEY}")  # a program may know it; the history may not
        assert printed.exit_code == 0
        events = [event async for event in again.history()]
        await again.delete()
    assert SERVER_KEY not in seen
    assert E2B_KEY not in seen
    assert events
    assert E2B_KEY not in str(events)
    for file in worker.data_dir.rglob("*"):
        if file.is_file() and not file.is_symlink():
            assert E2B_KEY.encode() not in file.read_bytes(), file
    async with cloud_client(e2b_cloud) as cloud:
        metadata = [remote.info.metadata async for remote in cloud.sessions()]
    assert E2B_KEY not in str(metadata)


async def test_unknown_sandboxes_of_this_worker_are_removed(
    worker: ServerProcess, e2b_cloud: ServerProcess
) -> None:
    """As a worker leaves one that dies in a create. One of another owner stays."""
    async with cloud_client(e2b_cloud) as cloud:
        ours, foreign = [
            await cloud.create(
                "base", metadata={"sandlot.owner": owner, "sandlot.sandbox": "sbx_" + "7" * 32}
            )
            for owner in (worker.owner, "somebody-else")
        ]

        async def removed() -> bool:
            return ours.id not in {remote.id async for remote in cloud.sessions()}

        await eventually(removed, 60, "the orphan is removed")
        assert foreign.id in {remote.id async for remote in cloud.sessions()}
        await foreign.delete()


async def test_an_unreachable_e2b_ends_no_session_and_stops_no_docker(
    e2b_cloud: ServerProcess, tmp_path: Path
) -> None:
    server = worker_at(e2b_cloud, tmp_path)
    try:
        await server.start()
        async with AsyncClient(server.url) as client:
            session = await client.create("cloud")
            await session.files.write("kept.txt", b"kept")
            await server.kill()
            os.kill(e2b_cloud.pid, signal.SIGSTOP)
            try:
                await server.start(ready=False)
                await server.wait_ready(120)
                here = await client.create("base")
                assert (await here.run("echo here")).stdout == "here\n"
                assert (await client.get(session.id)).info.state is not SessionState.LOST
            finally:
                os.kill(e2b_cloud.pid, signal.SIGCONT)

            async def back() -> bool:
                try:
                    return await (await client.get(session.id)).files.read("kept.txt") == b"kept"
                except SandlotError:
                    return False

            await eventually(back, 90, "the session is adopted")
    finally:
        await clean_worker(server, e2b_cloud)


async def test_a_session_says_what_makes_its_sandbox(client: AsyncClient) -> None:
    async with client.create(provider="e2b") as session:
        assert session.info.environment == "cloud"
    async with client.create(provider="docker") as session:
        assert session.info.environment == "base"
    with pytest.raises(InvalidRequest, match="Those of e2b are: cloud"):
        await client.create("base", provider="e2b")
    with pytest.raises(InvalidRequest, match="docker"):
        await client.create(provider="dokcer")  # type: ignore[arg-type]


async def test_lifecycle_of_the_third_specification(worker: ServerProcess) -> None:
    def program(provider: str) -> tuple[str, str]:
        lifecycle = Lifecycle(e2b_api_key="ignored", server_url=worker.url)
        session = lifecycle.start(
            agent_config={"type": "code_executor"}, environment="Python3", provider=provider
        )
        result = lifecycle.sandbox_mgr.execute_code(session["session_id"], "print('Hello World')")
        lifecycle.stop(session["session_id"], session["sandbox_id"])
        lifecycle.close()
        return session["provider"], result["stdout"]

    for provider in ("e2b", "docker"):
        assert await asyncio.to_thread(program, provider) == (provider, "Hello World\n")
    async with httpx.AsyncClient(base_url=worker.url, timeout=60) as http:
        made = (await http.post("/api/sessions", json={"provider": "e2b", "environment": "Python3"})).json()
        assert (made["provider"], made["environment"]) == ("e2b", "cloud")
        ran = await http.post(
            "/api/e2b/execute", json={"session_id": made["session_id"], "code": "print(42)"}
        )
        assert ran.json()["stdout"] == "42\n"
        await http.delete(f"/api/sessions/{made['session_id']}")

"""A worker that is restarted serves its sessions' networks again, by the same policies."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path

import pytest

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.testing.eventually import eventually
from tests.faults.rig import ServerProcess
from tests.network.conftest import ENVIRONMENTS, open_worker
from tests.unit.network.rig import OK, answering, outside

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

BROKEN_WITHIN_S = 5.0  # a download, after the death of the worker
BACK_WITHIN_S = 2.0  # the listeners, after the next worker is ready, beyond what a request takes


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


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Greets a request for /hello, and sends to any other as long as somebody reads."""
    while True:
        if b"GET /hello " in await reader.readuntil(b"\r\n\r\n"):
            writer.write(OK)
            continue
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")
        while True:
            writer.write(bytes(10_000))
            await writer.drain()
            await asyncio.sleep(0.01)


@pytest.mark.alone
async def test_a_worker_killed_during_downloads() -> None:
    """They end with an error at once, and the next request goes through the next worker, by the same policy."""
    server = ServerProcess(egress_allow="127.0.0.0/8", egress_ceiling="any")
    try:
        await server.start()
        async with server.client() as client, outside(endless) as host:
            fetch = f"curl -fsS --noproxy '' http://127.0.0.1:{host.port}"
            sessions = {
                tier: await client.create(environment, network=[f"127.0.0.1:{host.port}"])
                for tier, environment in ENVIRONMENTS.items()
            }
            before = {tier: await session.network.status() for tier, session in sessions.items()}
            downloads = {
                tier: await session.start(f'{fetch}/file -o file; echo "$? $(date +%s.%N)"')
                for tier, session in sessions.items()
            }
            for session in sessions.values():
                await eventually(partial(has_begun, session), 20, "the download has begun")
            await server.kill()
            killed_at = time.time()
            await server.start()
            ready_at = time.time()
            greet = f'{fetch}/hello -m 20 && date "+ %s.%N"'
            answers = await asyncio.gather(*(session.run(greet) for session in sessions.values()))
            for (tier, session), greeted in zip(sessions.items(), answers, strict=True):
                assert greeted.stdout.startswith("hello "), greeted
                back_s = float(greeted.stdout.removeprefix("hello")) - ready_at
                began = time.monotonic()
                assert (await session.run(greet)).ok
                request_s = time.monotonic() - began
                broken = await downloads[tier].wait()
                code, ended_at = broken.stdout.split()
                broken_s = float(ended_at) - killed_at
                figures = (
                    f"{tier}: broken off {broken_s:.2f} s after the death; first answer {back_s:.2f} s after the "
                    f"start, where a request takes {request_s:.2f} s"
                )
                print(figures)
                assert int(code) != 0, broken
                assert broken_s < BROKEN_WITHIN_S, figures
                assert back_s < request_s + BACK_WITHIN_S, figures
                after = await session.network.status()
                assert after.policy == before[tier].policy
                denied = await session.run("curl -fsS --noproxy '' http://127.0.0.1:1")
                assert [each.target for each in denied.denied] == ["127.0.0.1:1"]
                await session.delete()
    finally:
        await server.clean()


async def has_begun(session: AsyncSession) -> bool:
    return (await session.run("test -s file")).ok

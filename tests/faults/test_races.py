"""Two want the same at the same moment: whoever was first, the outcome is one that could have come in order."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import aiohttp
import httpx
import pytest

from sandlot import AsyncClient, errors
from tests.faults.invariants import problem, told
from tests.faults.rig import ServerProcess

pytestmark = [pytest.mark.docker, pytest.mark.slow]
ROUNDS = 100
THREADS = 4
CLIENTS = 50


@pytest.mark.timeout(400)  # five thousand requests, a hundred sandboxes
async def test_fifty_clients_for_one_thread(server: ServerProcess) -> None:
    """Fault 39, a hundred times, four threads at a time: one sandbox, and the same answer for all fifty."""
    made: list[str] = []
    # Five thousand requests: the client that costs least.
    http = aiohttp.ClientSession(server.url, connector=aiohttp.TCPConnector(limit=0))

    async def create(thread: str) -> tuple[int, str, str]:
        async with http.post("/v1/sessions", json={"thread": thread}) as answer:
            body = await answer.json()
            return answer.status, body["id"], body["sandbox_id"]

    async def rounds(first: int) -> None:
        for number in range(first, ROUNDS, THREADS):
            answers = await asyncio.gather(*(create(f"thread-{number}") for _ in range(CLIENTS)))
            assert Counter(status for status, _, _ in answers) == {201: 1, 200: CLIENTS - 1}
            ((session, sandbox),) = {answer[1:] for answer in answers}
            made.append(sandbox)
            async with http.delete(f"/v1/sessions/{session}") as answer:
                assert answer.status == 204

    async with http:
        await asyncio.gather(*(rounds(first) for first in range(THREADS)))
    # No sandbox served two sessions.
    assert len(set(made)) == ROUNDS
    await server.settle()


async def test_create_beside_delete(server: ServerProcess) -> None:
    """Fault 40: a create gets the session that is being deleted, or a new one; and there is never a third state."""
    async with server.client() as client:
        for _ in range(10):
            old = await client.create(thread="t")

            async def delete() -> None:
                await asyncio.sleep(random.uniform(0, 0.004))
                await old.delete()  # noqa: B023

            answers = await asyncio.gather(delete(), *(client.thread("t") for _ in range(5)))
            new = {session.id for session in answers if session is not None} - {old.id}
            assert len(new) <= 1
            now = await client.thread("t")
            assert new <= {now.id}
            assert (await now.run("echo mine")).output == "mine\n"
            with pytest.raises(errors.SessionEnded):
                await old.run("true")
            await now.delete()
    await server.settle()


async def test_the_reaper_beside_a_command(server: ServerProcess) -> None:
    """Fault 41: at the edge of its time a command is refused before it starts, or it is done; never cut short.

    Each session's own counter tells: every command that was accepted has run once, to its end.
    """
    outcomes: Counter[str] = Counter()

    async def life(client: AsyncClient) -> None:
        session = await client.create(idle_timeout_s=0.4)
        for times in range(1, 9):
            # Around the moment at which the reaper looks at a session whose time has come.
            await asyncio.sleep(random.uniform(0.3, 0.8))
            try:
                result = await session.run("echo ran >> ran; sleep 0.1; wc -l < ran; echo end")
            except errors.SandlotError as error:
                refusal = told(error)
                break
            assert result.output == f"{times}\nend\n"
            outcomes["accepted"] += 1
        else:
            await session.delete()
            return
        assert isinstance(refusal, errors.SessionEnded), refusal
        assert not refusal.may_have_executed
        assert refusal.details["reason"] == "idle"
        outcomes["refused"] += 1

    async with server.client() as client:
        for number in range(12):
            await asyncio.gather(*(life(client) for _ in range(6)))
            # The slower the machine, the fewer come in time.
            if number >= 2 and min(outcomes["refused"], outcomes["accepted"]) >= 5:
                break
    # Otherwise it was not the edge.
    assert outcomes["refused"] >= 5, outcomes
    assert outcomes["accepted"] >= 5, outcomes
    await server.settle()


async def test_expiry_beside_delete(server: ServerProcess) -> None:
    """Fault 43: two who end the same session remove its sandbox once, and neither sees an error."""
    sandboxes: set[str] = set()
    logged = len(server.log.read_text())
    async with server.client() as client, httpx.AsyncClient(base_url=server.url, timeout=30) as http:

        async def life() -> None:
            session = await client.create(idle_timeout_s=0.3)
            sandboxes.add(session.info.sandbox_id or "")
            await asyncio.sleep(random.uniform(0.3, 0.8))
            answers = await asyncio.gather(*(http.delete(f"/v1/sessions/{session.id}") for _ in range(3)))
            assert {answer.status_code for answer in answers} == {204}
            problem(await http.get(f"/v1/sessions/{session.id}"), 404, "session_ended")

        for _ in range(2):
            await asyncio.gather(*(life() for _ in range(5)))
    await server.settle()
    assert not sandboxes & server.containers().keys()
    log = server.log.read_text()[logged:]
    assert "cannot remove a sandbox" not in log
    assert not any(f"sandbox={sandbox}" in log for sandbox in sandboxes), "somebody stumbled over it"
    assert log.count("session ended") == len(sandboxes)

"""Clients go away, come back and ask twice: the command is not theirs to lose, and nothing is done twice."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.faults.invariants import TELL, counted, problem, times_run, until_told
from tests.faults.rig import ServerProcess, running

pytestmark = [pytest.mark.docker, pytest.mark.slow]
EVENTS = {"Accept": "text/event-stream"}


@pytest_asyncio.fixture
async def http(server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=300)
    async with httpx.AsyncClient(base_url=server.url, timeout=40, limits=limits) as client:
        yield client


async def events(response: httpx.Response) -> AsyncIterator[tuple[str, int, Any]]:
    """Name, id and body of each event, as a plain reader of server-sent events has them."""
    name, number = "", 0
    async for line in response.aiter_lines():
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "id":
            number = int(value)
        elif field == "data":
            yield name, number, json.loads(value)


async def create(http: httpx.AsyncClient, **body: object) -> str:
    response = await http.post("/v1/sessions", json=body)
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


async def test_a_client_goes_away_and_its_command_goes_on(
    server: ServerProcess, http: httpx.AsyncClient
) -> None:
    """Fault 36: whether it read a stream or waited for the result; both can be had again, by the exec's id."""
    session = await create(http)
    path = f"/v1/sessions/{session}"
    streamed = {"command": f"echo first; {until_told('streamed')}", "exec_id": "streamed"}
    async with http.stream("POST", f"{path}/exec", json=streamed, headers=EVENTS) as response:
        async for name, number, _ in events(response):
            if name == "output":
                offset = number
                break
    assert offset == len("first\n")
    waited = {"command": until_told("waited"), "exec_id": "waited"}
    waiting = asyncio.create_task(http.post(f"{path}/exec", json=waited))
    async with server.client() as client:
        held = await client.get(session)
        await running(held, 2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await held.run(TELL)
    async with http.stream(
        "GET", f"{path}/execs/streamed", params={"offset": offset}, headers=EVENTS
    ) as response:
        rest = [(name, body) async for name, _, body in events(response)]
    assert "".join(body["text"] for name, body in rest if name == "output") == "done streamed\n"
    assert rest[-1][1]["verdict"] == "ok"
    status = (await http.get(f"{path}/execs/waited", params={"wait_s": 30})).json()
    assert status["result"]["output"] == "done waited\n"
    async with server.client() as client:
        again = await client.get(session)
        assert [await times_run(again, name) for name in ("streamed", "waited")] == [1, 1]
    await server.settle()


async def test_read_in_pieces_without_gap_or_repetition(
    server: ServerProcess, http: httpx.AsyncClient
) -> None:
    """Fault 37, I11: cut off again and again, at any byte, a reader has every byte once."""
    session = await create(http)
    path = f"/v1/sessions/{session}/execs/long"
    command = "for i in $(seq 1 30); do seq $((i * 2000)) $((i * 2000 + 1999)); sleep 0.05; done"
    started = {"command": command, "exec_id": "long", "background": True}
    assert (await http.post(f"/v1/sessions/{session}/exec", json=started)).status_code == 202
    expected = "".join(f"{number}\n" for number in range(2000, 62000)).encode()
    assert len(expected) > 300_000
    read = b""
    attempts = 0
    ended = False
    while not ended:
        attempts += 1
        # Now by an offset in the middle of what was sent, now as a browser does.
        position: dict[str, Any] = (
            {"params": {"offset": len(read)}}
            if attempts % 2
            else {"headers": {"Last-Event-ID": str(len(read))}}
        )
        headers = EVENTS | position.pop("headers", {})
        fresh = 0
        async with http.stream("GET", path, headers=headers, **position) as response:
            async for name, number, body in events(response):
                if name == "output":
                    assert body["offset"] == len(read), "a gap or a repetition"
                    data = body["text"].encode()
                    assert number == body["offset"] + len(data)
                    # A reader may also be cut off in the middle of an event.
                    kept = data[: max(1, len(data) // 3)] if fresh > 20_000 else data
                    read += kept
                    fresh += len(kept)
                    if kept is not data:
                        break
                elif name == "exited":
                    ended = True
                    assert not body["exited"]["truncated"]
                    assert body["exited"]["output_bytes"] == len(expected)
    assert attempts > 5
    assert read == expected
    await server.settle()


async def test_what_is_left_out_is_marked(server: ServerProcess, http: httpx.AsyncClient) -> None:
    """Fault 37: an output beyond its limit says so, in the result and to whoever reads it again."""
    session = await create(http)
    body = {"command": "seq 1 20000", "exec_id": "much", "output_limit": 10_000}
    result = (await http.post(f"/v1/sessions/{session}/exec", json=body)).json()
    assert (result["truncated"], result["verdict"]) == (True, "ok")
    assert len(result["output"]) <= 10_000
    assert result["output_bytes"] == sum(len(f"{number}\n") for number in range(1, 20001))
    path = f"/v1/sessions/{session}/execs/much"
    expected = 0
    async with http.stream("GET", path, headers=EVENTS) as response:
        async for name, _, event in events(response):
            if name == "output":
                assert event["offset"] >= expected
                expected = event["offset"] + len(event["text"])
            else:
                last = event
    assert last["exited"]["truncated"]


async def test_the_same_key_twice(server: ServerProcess, http: httpx.AsyncClient) -> None:
    """Fault 38, for sessions: done, in flight, and with another payload."""
    body = {"metadata": {"for": "me"}}
    key = {"Idempotency-Key": "the-key"}
    at_once = await asyncio.gather(*(http.post("/v1/sessions", json=body, headers=key) for _ in range(10)))
    assert {response.status_code for response in at_once} == {200, 201}
    assert [response.status_code for response in at_once].count(201) == 1
    assert len({response.json()["id"] for response in at_once}) == 1
    later = await http.post("/v1/sessions", json=body, headers=key)
    assert (later.status_code, later.json()["id"]) == (200, at_once[0].json()["id"])
    other = await http.post("/v1/sessions", json={"metadata": {"for": "you"}}, headers=key)
    assert not problem(other, 422, "idempotency_mismatch")["retryable"]
    await server.kill()
    await server.start()
    after = await http.post("/v1/sessions", json=body, headers=key)
    assert (after.status_code, after.json()["id"]) == (200, at_once[0].json()["id"])
    await server.settle()


async def test_the_same_exec_twice(server: ServerProcess, http: httpx.AsyncClient) -> None:
    """Fault 38, for execs: whoever asks while it runs waits for the one result."""
    session = await create(http)
    path = f"/v1/sessions/{session}/exec"
    key = {"Idempotency-Key": "exec-key"}
    body = {"command": counted("once", 1)}
    began = time.monotonic()
    at_once = await asyncio.gather(*(http.post(path, json=body, headers=key) for _ in range(10)))
    assert time.monotonic() - began >= 1
    assert {response.status_code for response in at_once} == {200}
    assert {response.json()["output"] for response in at_once} == {"done once\n"}
    later = await http.post(path, json=body, headers=key)
    assert later.json() == at_once[0].json()
    other = await http.post(path, json={"command": "echo other"}, headers=key)
    assert not problem(other, 422, "idempotency_mismatch")["retryable"]
    async with server.client() as client:
        assert await times_run(await client.get(session), "once") == 1
    await server.settle()


async def test_deleted_twice(server: ServerProcess, http: httpx.AsyncClient) -> None:
    """Fault 42: at once and afterwards, it is gone once and nobody sees an error."""
    session = await create(http, thread="t")
    path = f"/v1/sessions/{session}"
    asked = asyncio.create_task(http.post(f"{path}/exec", json={"command": "sleep 30"}))
    async with server.client() as client:
        await running(await client.get(session), 1)
    answers = await asyncio.gather(*(http.delete(path) for _ in range(10)))
    assert {response.status_code for response in answers} == {204}
    assert (await http.delete(path)).status_code == 204
    assert problem(await asked, 404, "session_ended")["may_have_executed"]
    assert not problem(await http.post(f"{path}/exec", json={"command": "true"}), 404, "session_ended")[
        "may_have_executed"
    ]
    problem(await http.delete("/v1/sessions/ses_never"), 404, "not_found")
    # None is on its way out; the pool's next ones may be on their way in.
    assert set(server.containers().values()) <= {"created", "running"}
    await server.settle()

"""A server with a webhook is killed while a delivery is on its way, and its receiver is away meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from sandlot.testing.eventually import eventually
from tests.faults.rig import ServerProcess
from tests.unit.webhooks.receiver import Receiver, Request, status

pytestmark = [pytest.mark.docker, pytest.mark.slow]
KINDS = ["session.created", "exec.ended", "session.ended"]


async def test_killed_while_a_delivery_is_on_its_way() -> None:
    held, released = asyncio.Event(), asyncio.Event()

    async def hold(_: Request) -> bytes:
        held.set()
        await released.wait()  # the server dies first
        return b""

    async def accept(_: Request) -> bytes:
        return status(204)

    receiver = Receiver(accept)
    await receiver.start()
    server = ServerProcess(webhook_allow="127.0.0.0/8")
    try:
        await server.start()
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            made = await http.post("/v1/webhooks", json={"url": receiver.url, "events": KINDS})
            assert made.status_code == 201, made.text
            secret = made.json()["secret"]
            async with server.client() as client:
                session = await client.create()
                for number in range(5):
                    await session.run(f"echo {number}")
                await eventually(lambda: len(receiver.requests) == 6, 30)
                receiver.answer = hold
                await session.run("echo held")
                await asyncio.wait_for(held.wait(), 30)
                await session.run("echo waits")
                await _recorded(http, 8)
                await server.kill()
                released.set()
                await receiver.stop()
                receiver.answer = accept
                await server.start()
                await session.run("echo after")
                await receiver.start()
                await session.delete()
            events = await _recorded(http, 10)

            async def all_there() -> bool:
                return {request.data["id"] for request in receiver.requests} == {
                    event["id"] for event in events
                }

            await eventually(all_there, 60)
    finally:
        released.set()
        await receiver.stop()
        await server.clean()
    ids = {event["id"]: set[str]() for event in events}
    for request in receiver.requests:
        assert request.is_signed_with(secret)
        ids[request.data["id"]].add(request.id)
    assert {len(found) for found in ids.values()} == {1}
    first = list(dict.fromkeys(request.data["id"] for request in receiver.requests))
    assert first == [event["id"] for event in events], "in order"
    assert len(receiver.requests) == len(events) + 1, "only the one that was held came twice"


async def _recorded(http: httpx.AsyncClient, count: int) -> list[dict[str, Any]]:
    """The events of these kinds, once there are so many."""
    found: list[dict[str, Any]] = []

    async def there() -> bool:
        nonlocal found
        found = (await http.get("/v1/events", params={"kind": KINDS, "limit": 1000})).json()["events"]
        return len(found) >= count

    await eventually(there, 30)
    assert len(found) == count
    return found

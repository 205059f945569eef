"""Twenty open requests of every kind that lasts: all end with their key, and those of another key go on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest_asyncio
from tests.unit.api.keyed import REVOKED_WITHIN_S, Keyed, bearer, keyed_server
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from sandlot.testing.eventually import eventually

STREAM = {"Accept": "text/event-stream"}
FILE_BYTES = 32 * 1024 * 1024  # more than the buffers between server and client hold
EACH = 4
KINDS = ("exec", "history", "watch", "download", "attach")


@pytest_asyncio.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[Keyed]:
    async with keyed_server(tmp_path) as keyed:
        yield keyed


class Reader:
    """One open request. ``ended_at``: when it ended, which none of these does by itself."""

    def __init__(self, keyed: Keyed, key: str, session: str, kind: str) -> None:
        self.kind = kind
        self.began, self.goes_on = asyncio.Event(), asyncio.Event()
        self.ended_at = 0.0
        paths = {
            "exec": f"/v1/sessions/{session}/execs/long",
            "history": f"/v1/events?session={session}",
            "watch": f"/v1/sessions/{session}/files/watch?path=.",
            "download": f"/v1/sessions/{session}/files/content?path=large",
            "attach": f"/v1/sessions/{session}/execs/long/attach",
        }
        read = self._attach if kind == "attach" else self._read
        self.task = asyncio.create_task(read(keyed, paths[kind], key))

    async def _read(self, keyed: Keyed, path: str, key: str) -> None:
        headers = bearer(key) if self.kind == "download" else {**bearer(key), **STREAM}
        received = 0
        async with keyed.live.client.stream("GET", path, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            try:
                async for content in response.aiter_bytes():
                    received += len(content)
                    self.began.set()
                    if self.kind == "download":  # it would be done before its key is
                        await self.goes_on.wait()
            except httpx.RemoteProtocolError:
                pass  # it was cut off
        self.ended_at = time.monotonic()
        assert received < FILE_BYTES

    async def _attach(self, keyed: Keyed, path: str, key: str) -> None:
        url = f"ws://127.0.0.1:{keyed.live.port}{path}"
        async with connect(url, additional_headers=bearer(key)) as socket:
            try:
                while True:
                    await socket.recv()
                    self.began.set()
            except ConnectionClosed as closed:
                self.ended_at = time.monotonic()
                assert closed.rcvd is not None
                assert closed.rcvd.code == 1008


async def test_all_end_with_their_key(keyed: Keyed) -> None:
    mine, other = await keyed.create(tenant="acme"), await keyed.create(tenant="acme")
    secret = mine["secret"]
    session = (await keyed.post("/v1/sessions", secret, {})).json()["id"]
    body = {"command": "echo begun; sleep 60", "exec_id": "long", "background": True, "stdin": True}
    assert (await keyed.post(f"/v1/sessions/{session}/exec", secret, body)).status_code < 300
    put = await keyed.live.client.put(
        f"/v1/sessions/{session}/files/content?path=large", content=bytes(FILE_BYTES), headers=bearer(secret)
    )
    assert put.status_code < 300, put.text
    ours = [Reader(keyed, secret, session, kind) for kind in KINDS for _ in range(EACH)]
    theirs = [Reader(keyed, other["secret"], session, kind) for kind in KINDS]
    assert len(ours) == 20
    opened = [reader for reader in (*ours, *theirs) if reader.kind != "watch"]
    await eventually(lambda: all(reader.began.is_set() for reader in opened), 20)
    written = await keyed.live.client.put(
        f"/v1/sessions/{session}/files/content?path=changed", content=b"x", headers=bearer(secret)
    )
    assert written.status_code < 300
    await eventually(lambda: all(reader.began.is_set() for reader in (*ours, *theirs)), 20)
    assert not any(reader.task.done() for reader in (*ours, *theirs))
    revoked_at = time.monotonic()
    assert (await keyed.revoke(mine["key"]["id"])).status_code == 200
    for reader in ours:
        reader.goes_on.set()
    await asyncio.wait_for(asyncio.gather(*(reader.task for reader in ours)), 2 * REVOKED_WITHIN_S)
    late = {reader.kind for reader in ours if reader.ended_at - revoked_at > REVOKED_WITHIN_S}
    assert not late
    assert not any(reader.task.done() for reader in theirs), "another key of the same tenant goes on"
    for reader in theirs:
        reader.task.cancel()
    await asyncio.gather(*(reader.task for reader in theirs), return_exceptions=True)
    assert (await keyed.get(f"/v1/sessions/{session}", secret)).status_code == 401

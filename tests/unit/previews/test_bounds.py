"""What previews hold within bounds, and what cannot be smuggled through them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.unit.previews.rig import KEY, PORT, SECONDS, Rig, rigged

from sandlot.api.edge import request_body
from sandlot.api.previews.pages import Refused
from sandlot.api.previews.turns import Turns
from sandlot.testing.eventually import eventually

pytestmark = pytest.mark.asyncio


def request_line(rig: Rig, prefix: str, method: str = "POST") -> str:
    return f"{method} {prefix}/ HTTP/1.1\r\nHost: {rig.url.removeprefix('http://')}\r\nConnection: close\r\n"


@pytest.mark.parametrize(
    "smuggled",
    [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
        "Content-Length: 4\r\nContent-Length: 30\r\n\r\nabcd",
        "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "Content-Length: +4\r\n\r\nabcd",
        "Content-Length : 4\r\n\r\nabcd",
        " X: folded\r\nContent-Length: 4\r\n\r\nabcd",
        "X: a\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n4;\nx\r\nabcd\r\n0\r\n\r\n",
    ],
)
async def test_no_request_has_two_readings(smuggled: str) -> None:
    """The second request is for the program's eyes only if the first one ends where the server says."""
    async with rigged() as rig:
        preview = await rig.expose()
        hidden = "GET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n"
        await rig.raw((request_line(rig, preview.prefix) + smuggled + hidden).encode())
        for received in rig.program.raw:
            assert b"hidden" not in bytes(received)
        assert all(head.target == b"/" for head in rig.program.heads)
        assert len(rig.program.heads) <= 1


@pytest.mark.parametrize("target", ["/a b", "/a\x01", "/\x7f", "http://evil.example/"])
async def test_no_target_breaks_the_request_line(target: str) -> None:
    async with rigged() as rig:
        preview = await rig.expose()
        line = f"GET {preview.prefix}{target} HTTP/1.1\r\nHost: {rig.url.removeprefix('http://')}\r\n"
        answer = await rig.raw((line + "Connection: close\r\n\r\n").encode("latin-1"))
        assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 200", b"HTTP/1.1 403"))
        for received in rig.program.raw:
            assert bytes(received).count(b"HTTP/1.1\r\n") == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 5\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 20_000 + b"\r\nhi",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
        b"",
    ],
    ids=["lengths", "encoding", "long header", "many headers", "status", "not http", "upgrade", "nothing"],
)
async def test_an_answer_that_is_no_http(answer: bytes) -> None:
    async with rigged() as rig:
        rig.program.answer = answer
        preview = await rig.expose()
        refused = await rig.client.get(preview.url)
        assert refused.status_code == 502
        assert f"port {PORT}" in refused.text


async def test_an_answer_ends_where_it_says() -> None:
    """What follows is not the beginning of the next answer."""
    async with rigged() as rig:
        rig.program.answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\n\r\nevil"
        preview = await rig.expose()
        for _ in range(3):
            assert (await rig.client.get(preview.url)).text == "hi"


async def test_a_broken_answer_is_not_taken_for_a_whole_one() -> None:
    async with rigged() as rig:
        rig.program.answer = b"HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\nhi"
        preview = await rig.expose()
        raw = await rig.raw((request_line(rig, preview.prefix, "GET") + "\r\n").encode())
        assert b"content-length: 20" in raw
        assert raw.endswith(b"hi")


async def test_a_body_that_is_too_large() -> None:
    async with rigged(max_body_bytes=1000) as rig:
        preview = await rig.expose()
        assert (await rig.client.post(preview.url, content=b"x" * 1000)).status_code == 200
        assert (await rig.client.post(preview.url, content=b"x" * 1001)).status_code == 413
        chunk = b"3e9\r\n" + b"x" * 1001 + b"\r\n"
        head = request_line(rig, preview.prefix) + "Transfer-Encoding: chunked\r\n\r\n"
        assert (await rig.raw(head.encode() + chunk)).startswith(b"HTTP/1.1 413")


async def test_a_body_that_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte of a slow body does not extend its time."""
    monkeypatch.setattr("sandlot.api.previews.gateway.DEFAULT_BODY_TIMEOUT_S", 0.3)
    assert request_body.MIN_BYTES_PER_S >= 1024
    async with rigged() as rig:
        preview = await rig.expose()
        head = request_line(rig, preview.prefix) + "Content-Length: 100\r\n\r\nslow"
        assert (await rig.raw(head.encode())).startswith(b"HTTP/1.1 408")


async def test_a_program_that_never_answers() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with rigged(idle_s=0.3) as rig:
        rig.program.script = silent
        preview = await rig.expose()
        answer = await rig.client.get(preview.url)
        assert (answer.status_code, "did not answer in time" in answer.text) == (504, True)


async def test_visits_wait_for_their_turn() -> None:
    release = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await release.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()

    async with rigged(requests_per_session=3, visits=20, turn_s=SECONDS) as rig:
        rig.program.script = slow
        preview = await rig.expose()
        asking = [asyncio.create_task(rig.client.get(preview.url)) for _ in range(8)]

        async def refused() -> bool:
            return sum(task.done() for task in asking) == 3

        await eventually(refused, SECONDS, "those beyond the limit are refused")
        assert rig.program.open == 3
        release.set()
        answers = [(await task).status_code for task in asking]
        assert sorted(answers) == [200] * 5 + [503] * 3
        answer = await rig.client.get(preview.url)
        assert answer.status_code == 200


async def test_visitors_of_one_session_leave_room_for_others() -> None:
    turns = Turns(per_session=1, total=8, wait_s=SECONDS)
    async with turns.turn("crowded"):
        waiting = asyncio.create_task(turns.turn("crowded").__aenter__())
        await asyncio.sleep(0)
        with pytest.raises(Refused, match="Too many"):
            async with asyncio.timeout(SECONDS / 4):  # at once, not when its turn does not come
                await turns.turn("crowded").__aenter__()
        async with asyncio.timeout(SECONDS), turns.turn("other"):
            pass
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_a_turn_that_does_not_come() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with rigged(requests_per_session=1, turn_s=0.2) as rig:
        rig.program.script = silent
        preview = await rig.expose()
        first = asyncio.create_task(rig.client.get(preview.url))

        async def begun() -> bool:
            return rig.program.open == 1

        await eventually(begun, SECONDS, "the first request has its turn")
        busy = await rig.client.get(preview.url)
        assert (busy.status_code, busy.headers["retry-after"]) == (503, "2")
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def test_no_path_of_a_preview_is_in_the_metrics() -> None:
    async with rigged() as rig:
        preview = await rig.expose()
        assert (await rig.client.get(preview.url)).status_code == 200
        metrics = await rig.client.get(f"{rig.url}/metrics", headers={"Authorization": f"Bearer {KEY}"})
        assert 'route="/preview"' in metrics.text
        assert preview.prefix not in metrics.text
        assert preview.prefix.removeprefix("/preview/") not in repr(replace(rig.options, idle_s=1))

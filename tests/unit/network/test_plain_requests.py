"""Plain requests through the proxy: what reaches a host, and what does not."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.network.rig import OK, SECONDS, answering, eventually, outside, proxying, resolving

HERE = ["127.0.0.1"]


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


async def test_a_request_is_passed_on_without_what_is_for_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, a=HERE)
    async with outside(answering(OK)) as host, proxying([f"a.test:{host.port}"]) as rig:
        answer = await rig.get(
            f"http://a.test:{host.port}/x?y=1",
            "Proxy-Authorization: Basic c2VjcmV0",
            "Proxy-Connection: keep-alive",
            "Connection: keep-alive, X-Mine",
            "X-Mine: 1",
            "X-Kept: 2",
            "Upgrade: websocket",
            "TE: trailers",
        )
        assert status(answer) == 200
        assert answer.endswith(b"\r\n\r\nhello")
        [heard] = host.received
        assert bytes(heard).lower().split(b"\r\n") == [
            b"get /x?y=1 http/1.1",
            b"host: a.test:%d" % host.port,
            b"x-kept: 2",
            b"connection: close",
            b"",
            b"",
        ]
        assert rig.proxy.traffic.requests == 1
        assert rig.proxy.traffic.received_bytes == len(OK)
        assert rig.proxy.traffic.sent_bytes == len(heard)


async def test_a_denied_request_says_why_and_reaches_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = resolving(monkeypatch, a=HERE)
    async with outside(answering(OK)) as host, proxying(["pypi"]) as rig:
        answer = await rig.get(f"http://a.test:{host.port}/")
        line = answer.partition(b"\r\n")[0].decode()
        # Many tools show the status line alone, so it says how to go on.
        assert line.startswith(
            f"HTTP/1.1 403 Sandlot denied a.test:{host.port} (not allowed). To allow it, call"
        )
        assert b"Allowed are: pypi." in answer
        assert f'session.network.allow("a.test:{host.port}", for_s=600)'.encode() in answer
        assert host.received == []
        assert asked == []  # a denied name is not even resolved: questions carry data out
        assert [denied.target for denied in rig.reported] == [f"a.test:{host.port}"]
        assert rig.proxy.denied_since(rig.now) == tuple(rig.reported)
        assert rig.proxy.denied_since(rig.now + 1) == ()
        await rig.get(f"http://a.test:{host.port}/")
        assert len(rig.reported) == 1
        assert rig.proxy.traffic.denied == 2


async def test_each_request_on_a_connection_is_decided_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, a=HERE, b=HERE)
    async with outside(answering(OK)) as host, proxying([f"a.test:{host.port}"]) as rig:
        a, b = (
            f"GET http://{name}.test:{host.port}/ HTTP/1.1\r\nHost: {name}.test:{host.port}\r\n\r\n".encode()
            for name in "ab"
        )
        answer = await rig.exchange(a + a + b + a)
        assert answer.count(b"200 OK") == 2
        assert answer.count(b"HTTP/1.1 403") == 1
        assert len(host.received) == 2  # each on a connection of its own
        rig.egress = rig.egress.with_grant(f"b.test:{host.port}", rig.now, 10)
        assert (await rig.exchange(b + a)).count(b"200 OK") == 2
        rig.now += 10
        assert status(await rig.exchange(b)) == 403


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("GET / HTTP/1.1\r\nHost: a.test", "This is a proxy"),
        ("GET a.test HTTP/1.1\r\nHost: a.test", "This is a proxy"),
        ("OPTIONS * HTTP/1.1\r\nHost: a.test", "This is a proxy"),
        ("GET https://a.test/ HTTP/1.1\r\nHost: a.test", "Use CONNECT"),
        ("GET ftp://a.test/ HTTP/1.1\r\nHost: a.test", "speaks http"),
        ("GET http://a.test/#x HTTP/1.1\r\nHost: a.test", "This is a proxy"),
        ("GET http://a.test@b.test/ HTTP/1.1\r\nHost: b.test", "is not a host"),
        ("GET http://b.test:80@a.test/ HTTP/1.1\r\nHost: a.test", "is not a port"),
        ("GET http://b.test\\@a.test/ HTTP/1.1\r\nHost: a.test", "is not a host"),
        ("GET http://a%2etest/ HTTP/1.1\r\nHost: a.test", "is not a host"),
        ("GET http:///x HTTP/1.1\r\nHost: a.test", "is not a host"),
        ("GET http://[fe80::1%25eth0]/ HTTP/1.1\r\nHost: a.test", "is not a host"),
        ("GET http://a.test:0/ HTTP/1.1\r\nHost: a.test", "is not a port"),
        ("GET http://a.test/ HTTP/1.1\r\nHost: b.test", "Host header and the target"),
        ("GET http://a.test/ HTTP/1.1\r\nHost: a.test:81", "Host header and the target"),
        ("GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nHost: a.test", "not valid HTTP"),
        ("GET http://a.test/ HTTP/1.1", "not valid HTTP"),
        ("GET http://a.test/ HTTP/2.0\r\nHost: a.test", "speaks HTTP/1.1"),
        (
            "POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1\r\nContent-Length: 2",
            "not valid HTTP",
        ),
        ("POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nContent-Length: +1", "not valid HTTP"),
        ("POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nContent-Length: 18446744073709551616", "too large"),
        ("POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nContent-Length: 9223372036854775808", "too large"),
        (
            "POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\nContent-Length: 5",
            "has both",
        ),
        ("POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: xchunked", "not valid HTTP"),
        ("POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding : chunked", "not valid HTTP"),
        (
            "POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked, chunked",
            "not valid HTTP",
        ),
        ("POST http://a.test/ HTTP/1.0\r\nHost: a.test\r\nTransfer-Encoding: chunked", "HTTP/1.0 has no"),
        ("GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nX: a\rX-Injected: b", "not valid HTTP"),
        ("GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nX\x00: a", "not valid HTTP"),
        ("GET http://a.test/\x7f HTTP/1.1\r\nHost: a.test", "not valid HTTP"),
        ("\x16\x03\x01 HTTP/1.1\r\nHost: a.test", "not valid HTTP"),
    ],
)
async def test_a_request_that_could_be_read_in_two_ways(
    monkeypatch: pytest.MonkeyPatch, head: str, message: str
) -> None:
    asked = resolving(monkeypatch, a=HERE, b=HERE)
    async with proxying("public") as rig:
        answer = await rig.exchange(head.encode() + b"\r\n\r\n")
        assert 400 <= status(answer) < 502
        assert message.encode() in answer
        assert asked == []


async def test_a_body_has_one_framing_whatever_the_program_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request in the body of another one stays its body, also in chunks with extensions and trailers."""
    resolving(monkeypatch, a=HERE)
    async with outside(answering(OK)) as host, proxying([f"a.test:{host.port}"]) as rig:
        hidden = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
        head = b"POST http://a.test:%d/ HTTP/1.1\nHost: a.test:%d\r\nConnection: content-length\r\n" % (
            (host.port,) * 2
        )
        answer = await rig.exchange(
            head
            + b"Transfer-Encoding: chunked\r\n\r\n%x;x=y\r\n%s\r\n0\r\nX-Trailer: 1\r\n\r\n"
            % (len(hidden), hidden)
            + head
            + b"Content-Length: %d\r\n\r\n%s" % (len(hidden), hidden)
        )
        assert answer.count(b"200 OK") == 2
        first, second = (bytes(heard).lower() for heard in host.received)
        assert first.count(b"transfer-encoding: chunked") == 1
        assert b"content-length" not in first
        assert b"x-trailer" not in first
        assert first.endswith(b"\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(hidden), hidden.lower()))
        assert second.count(b"content-length: %d\r\n" % len(hidden)) == 1
        assert second.endswith(b"\r\n\r\n" + hidden.lower())


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            b"hello",
        ),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\n\r\nsmuggled", b"hello"),
        (b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 204 No Content\r\n\r\nsmuggled", b""),
    ],
)
async def test_an_answer_ends_where_it_ends(
    monkeypatch: pytest.MonkeyPatch, answer: bytes, body: bytes
) -> None:
    resolving(monkeypatch, a=HERE)
    async with outside(answering(answer)) as host, proxying([f"a.test:{host.port}"]) as rig:
        request = f"GET http://a.test:{host.port}/ HTTP/1.1\r\nHost: a.test:{host.port}\r\n\r\n".encode()
        both = await rig.exchange(request + request)
        assert both.count(b"HTTP/1.1 20") == 2
        assert both.count(b"hello") == 2 * (body == b"hello")
        assert b"smuggled" not in both
        assert b"Early" not in both


@pytest.mark.parametrize(
    "answer",
    [
        *(b"", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nx", b"HTTP/1.1 200 OK\r\nX : y\r\n\r\n"),
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 300_000 + b"\r\n\r\n",
    ],
    ids=lambda answer: repr(answer[:40]),
)
async def test_an_answer_that_is_not_http(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.write_eof()
        await reader.read()

    resolving(monkeypatch, a=HERE)
    async with outside(script) as host, proxying([f"a.test:{host.port}"]) as rig:
        assert status(await rig.get(f"http://a.test:{host.port}/")) == 502


@pytest.mark.parametrize("framing", ["content-length: 1000", "transfer-encoding: chunked"])
async def test_an_answer_that_breaks_off_does_not_look_complete(
    monkeypatch: pytest.MonkeyPatch, framing: str
) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n5\r\nhello\r\n".encode())
        await writer.drain()

    resolving(monkeypatch, a=HERE)
    async with outside(script) as host, proxying([f"a.test:{host.port}"]) as rig:
        reader, writer = await rig.connect()
        target = f"a.test:{host.port}"
        writer.write(f"GET http://{target}/ HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        whole = reader.readuntil(b"0\r\n\r\n") if "chunked" in framing else reader.readexactly(1000)
        async with asyncio.timeout(SECONDS):
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await whole
        writer.close()


async def test_an_answer_without_a_length_is_complete_for_old_and_new_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nhello")
        await writer.drain()

    resolving(monkeypatch, a=HERE)
    async with outside(script) as host, proxying([f"a.test:{host.port}"]) as rig:
        assert (await rig.get(f"http://a.test:{host.port}/")).endswith(b"\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
        old = await rig.exchange(f"GET http://a.test:{host.port}/ HTTP/1.0\r\n\r\n".encode())
        assert old.endswith(b"\r\n\r\nhello")


async def test_a_program_that_waits_for_100_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, a=HERE)
    async with outside(answering(OK)) as host, proxying([f"a.test:{host.port}"]) as rig:
        target = f"a.test:{host.port}"
        head = f"Host: {target}\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"
        reader, writer = await rig.connect()
        async with asyncio.timeout(SECONDS):
            writer.write(f"PUT http://{target}/ HTTP/1.1\r\n{head}".encode())
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
            writer.write(b"body")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.close()
        assert b"expect" not in bytes(host.received[0]).lower()
        denied = await rig.exchange(
            f"PUT http://b.test/ HTTP/1.1\r\n{head.replace(target, 'b.test')}".encode(), end=False
        )
        assert status(denied) == 403


async def test_an_answer_before_the_end_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too large\r\ncontent-length: 3\r\n\r\nbig")
        await writer.drain()

    resolving(monkeypatch, a=HERE)
    async with outside(script) as host, proxying([f"a.test:{host.port}"]) as rig:
        target = f"a.test:{host.port}"
        head = f"PUT http://{target}/ HTTP/1.1\r\nHost: {target}\r\nContent-Length: 10000000\r\n\r\n"
        answer = await rig.exchange(head.encode() + b"x" * 1000, end=False)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert answer.endswith(b"big")


async def test_a_large_body_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        while size:
            data = await reader.read(65536)
            size -= len(data)
            writer.write(data)
            await writer.drain()

    resolving(monkeypatch, a=HERE)
    async with outside(script) as host, proxying([f"a.test:{host.port}"]) as rig:
        target, body = f"a.test:{host.port}", bytes(range(256)) * 20_000
        head = f"PUT http://{target}/ HTTP/1.1\r\nHost: {target}\r\nContent-Length: {len(body)}\r\n\r\n"
        reader, writer = await rig.connect()
        async with asyncio.timeout(SECONDS):
            writer.write(head.encode() + body)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            answer = await reader.readexactly(len(body))
        writer.close()
        assert answer == body


async def test_a_slow_head_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes soon after the last, and the head never ends."""
    resolving(monkeypatch)
    async with proxying("public", head_s=0.3, last_bytes_s=0.2) as rig:
        reader, writer = await rig.connect()

        async def drip() -> None:
            writer.write(b"GET http://a.test/ HTTP/1.1\r\nX: ")
            while True:
                writer.write(b"x")
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        try:
            async with asyncio.timeout(SECONDS):
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await reader.readexactly(1)
        finally:
            dripping.cancel()
            await asyncio.gather(dripping, return_exceptions=True)
            writer.close()
        await eventually(lambda: rig.proxy.traffic.open == 0)


async def test_silence_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    resolving(monkeypatch, a=HERE)
    async with (
        outside(silent) as host,
        proxying([f"a.test:{host.port}"], idle_s=0.2, keep_alive_s=0.2) as rig,
    ):
        assert await rig.exchange(b"", end=False) == b""  # a program that says nothing
        target = f"a.test:{host.port}"
        request = f"GET http://{target}/ HTTP/1.1\r\nHost: {target}\r\n\r\n"
        assert await rig.exchange(request.encode(), end=False) == b""  # a host that says nothing


async def test_a_head_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch)
    async with proxying("public") as rig:
        answer = await rig.exchange(b"GET http://a.test/ HTTP/1.1\r\nX: " + b"x" * 300_000, end=False)
        assert status(answer) == 431
        assert b"too large" in answer

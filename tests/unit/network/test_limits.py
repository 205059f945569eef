"""What bounds a session: addresses after resolution, caps, and what it holds open."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest
from tests.unit.network.rig import OK, SECONDS, answering, echo, eventually, outside, proxying, resolving

from sandlot.worker.network import dialer as dialer_module
from sandlot.worker.network.proxy import MAX_REFUSED_AT_ONCE

HERE = ["127.0.0.1"]


@pytest.mark.parametrize(
    "addresses",
    [
        *("127.0.0.1", "10.0.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "168.63.129.16"),
        *("::1", "fd00:ec2::254", "fe80::1", "::ffff:127.0.0.1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::"),
        "93.184.216.34 127.0.0.1",
    ],
)
async def test_a_name_that_leads_to_a_private_address(
    monkeypatch: pytest.MonkeyPatch, addresses: str
) -> None:
    """Also if only one of its addresses is private, or it is an alias (CNAME) of such a name."""
    resolving(monkeypatch, a=[addresses])
    async with proxying(["a.test"], allowed=()) as rig:
        for answer in (
            await rig.get("http://a.test/"),
            await rig.exchange(b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test\r\n\r\n"),
        ):
            assert answer.startswith(b"HTTP/1.1 403 ")
            assert b"(not a public address)" in answer
            assert b"private, local or reserved" in answer
            assert addresses.encode() not in answer
        assert {denied.rule for denied in rig.reported} == {"not a public address"}


async def test_a_listed_address_must_be_public_too() -> None:
    async with proxying(["127.0.0.1", "169.254.169.254"], allowed=()) as rig:
        for address in ("127.0.0.1", "127.1", "169.254.169.254"):
            answer = await rig.get(f"http://{address}/")
            assert b"(not a public address)" in answer


async def test_the_machines_own_address_is_not_public(monkeypatch: pytest.MonkeyPatch) -> None:
    """A firewall may hide what listens there. Here, loopback stands for a public address of the machine."""
    monkeypatch.setattr(dialer_module, "is_public", lambda _: True)
    async with outside(answering(OK)) as host, proxying([f"127.0.0.1:{host.port}"], allowed=()) as rig:
        assert b"(not a public address)" in await rig.get(f"http://127.0.0.1:{host.port}/")
        assert host.received == []


async def test_rebinding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address that was checked is the one that is connected to: there is no second question."""
    asked = resolving(monkeypatch, a=["127.0.0.1", "10.0.0.1"])
    async with outside(answering(OK)) as host, proxying([f"a.test:{host.port}"]) as rig:
        assert b"200 OK" in await rig.get(f"http://a.test:{host.port}/")
        assert asked == ["a"]
        assert b"HTTP/1.1 403 " in await rig.get(f"http://a.test:{host.port}/")


async def test_a_denied_address_behind_an_allowed_name(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, a=HERE)
    async with proxying({"allow": ["a.test"], "deny": ["127.0.0.1"]}) as rig:
        assert b"(deny: 127.0.0.1)" in await rig.get("http://a.test/")


async def test_a_redirect_is_the_programs_to_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, a=HERE)
    moved = b"HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n"
    async with outside(answering(moved)) as host, proxying([f"a.test:{host.port}", "public"]) as rig:
        assert b"302 Found" in await rig.get(f"http://a.test:{host.port}/")
        assert b"HTTP/1.1 403 " in await rig.get("http://169.254.169.254/")


async def test_a_host_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, a=HERE)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with proxying([f"a.test:{port}", "unknown.test"]) as rig:
        answer = await rig.get(f"http://a.test:{port}/")
        assert answer.startswith(b"HTTP/1.1 502 ")
        assert b"127.0.0.1" not in answer
        assert b"Name or service not known" in await rig.get("http://unknown.test/")
        assert rig.reported == []


async def test_slow_names_of_one_session_do_not_hold_up_another(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    resolving(monkeypatch, a=HERE)
    patched = socket.getaddrinfo

    def slow(host: Any, *args: Any, **kwargs: Any) -> Any:
        if str(host).startswith("slow"):
            release.wait(SECONDS)
        return patched(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    limits = {"connect_s": 0.3, "resolving": 1, "resolving_in_all": 2}
    try:
        async with outside(answering(OK)) as host, proxying("public", **limits) as hostile:
            for _ in range(2):  # what the first ones asked is still being resolved
                names = [f"http://slow{number}.test/" for number in range(3)]
                answers = await asyncio.gather(*map(hostile.get, names))
                assert [answer[:13] for answer in answers] == [b"HTTP/1.1 504 "] * 3
            async with proxying([f"a.test:{host.port}"], hostile) as other:
                assert b"200 OK" in await other.get(f"http://a.test:{host.port}/")
            release.set()
    finally:
        release.set()


async def test_connections_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, a=HERE)
    async with outside(echo) as host:
        policy = {"allow": [f"a.test:{host.port}"], "caps": {"connections": 3}}
        async with proxying(policy, last_bytes_s=0.2) as rig:
            tunnels = [await rig.tunnel(f"a.test:{host.port}") for _ in range(3)]
            answers = await asyncio.gather(*(rig.exchange(b"", end=False) for _ in range(200)))
            told = [answer for answer in answers if answer.startswith(b"HTTP/1.1 503 Too many connections")]
            assert len(told) >= MAX_REFUSED_AT_ONCE
            assert all(answer in (b"", told[0]) for answer in answers)
            assert host.open == 3
            assert rig.proxy.traffic.refused == 200
            for _, writer, _ in tunnels:
                writer.close()
            await eventually(lambda: rig.proxy.traffic.open == 0)
            _, writer, answer = await rig.tunnel(f"a.test:{host.port}")
            assert answer.startswith(b"HTTP/1.1 200 ")
            writer.close()


@pytest.mark.parametrize("way", ["plain", "tunnel"])
async def test_bytes_of_a_session(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if way == "plain":
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n")
        for _ in range(1000):
            writer.write(b"x" * 100_000)
            await writer.drain()

    resolving(monkeypatch, a=HERE)
    async with outside(flood) as host:
        target = f"a.test:{host.port}"
        async with proxying({"allow": [target], "caps": {"bytes": 1_000_000}}) as rig:
            method = f"GET http://{target}/" if way == "plain" else f"CONNECT {target}"
            reader, writer = await rig.connect()
            writer.write(f"{method} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
            received = 0
            async with asyncio.timeout(SECONDS):
                try:
                    while data := await reader.read(65536):
                        received += len(data)
                except ConnectionError:
                    pass
            writer.close()
            assert 500_000 < received < 1_001_000
            assert [denied.rule for denied in rig.reported] == ["caps: bytes"]
            answer = await rig.get(f"http://{target}/")
            assert answer.startswith(b"HTTP/1.1 403 ")
            assert b"as many bytes as it may" in answer


async def test_heads_count_as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a host could send anything in headers, or in answers before the answer."""
    resolving(monkeypatch, a=HERE)
    in_headers = b"HTTP/1.1 200 OK\r\nx: %s\r\ncontent-length: 0\r\n\r\n" % (b"x" * 50_000)
    before = b"HTTP/1.1 103 Early Hints\r\nx: %s\r\n\r\n" % (b"x" * 50_000) + OK
    for answer in (in_headers, before):
        async with outside(answering(answer)) as host:
            target = f"a.test:{host.port}"
            async with proxying({"allow": [target], "caps": {"bytes": 120_000}}) as rig:
                answers = [await rig.get(f"http://{target}/") for _ in range(4)]
                assert [answer.startswith(b"HTTP/1.1 200 ") for answer in answers[:2]] == [True, True]
                assert answers[-1].startswith(b"HTTP/1.1 403 ")
                assert {denied.rule for denied in rig.reported} == {"caps: bytes"}


async def test_bytes_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second's worth at once, then the rate; both tunnels together."""
    resolving(monkeypatch, a=HERE)
    async with outside(echo) as host:
        target, rate = f"a.test:{host.port}", 200_000
        async with proxying({"allow": [target], "caps": {"bytes_per_s": rate}}) as rig:
            loop = asyncio.get_running_loop()
            began = loop.time()

            async def send() -> None:
                reader, writer, _ = await rig.tunnel(target)
                writer.write(b"x" * 100_000)
                async with asyncio.timeout(SECONDS):
                    await reader.readexactly(100_000)
                writer.close()

            await asyncio.gather(send(), send())
            assert loop.time() - began > 0.9  # 400,000 bytes pass, half of them at once


async def test_a_program_that_does_not_read_stops_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes in flight are bounded: the host cannot send more than buffers take."""
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()
            sent += 65536

    resolving(monkeypatch, a=HERE)
    async with outside(flood) as host, proxying([f"a.test:{host.port}"]) as rig:
        _, writer, _ = await rig.tunnel(f"a.test:{host.port}")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        before = -1
        async with asyncio.timeout(SECONDS):
            while sent != before:
                before = sent
                await asyncio.sleep(0.3)
        assert 0 < sent < 40_000_000  # what the kernel holds for four sockets, and 2 pieces
        writer.transport.abort()
        await eventually(lambda: rig.proxy.traffic.open == 0)


async def test_a_connection_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, a=HERE)
    async with outside(echo) as host, proxying([f"a.test:{host.port}"], total_s=0.5) as rig:
        reader, writer, _ = await rig.tunnel(f"a.test:{host.port}")

        async def talk() -> None:
            while True:
                writer.write(b"x")
                await reader.readexactly(1)
                await asyncio.sleep(0.01)

        async with asyncio.timeout(SECONDS):
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await talk()
        writer.close()

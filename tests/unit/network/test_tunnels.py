"""Tunnels through the proxy: TLS with the right name, and other protocols where a rule names the port."""

from __future__ import annotations

import asyncio
import ssl

import pytest
from tests.unit.network.rig import (
    OK,
    SECONDS,
    Authority,
    Rig,
    answering,
    echo,
    eventually,
    new_authority,
    outside,
    proxying,
    resolving,
)

from sandlot.domain.network import rules
from sandlot.worker.network import conversation
from sandlot.worker.network.client_hello import ACCESS_DENIED

HERE = ["127.0.0.1"]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return new_authority(tmp_path_factory.mktemp("authority"))


def web_ports(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    """Lets a stand-in have a port of the web: below 1024 only root can listen, and it may be taken."""
    monkeypatch.setattr(rules, "WEB_PORTS", ports)


async def tls_through(rig: Rig, target: str, context: ssl.SSLContext, name: str | None) -> bytes:
    """Says hello through TLS through a tunnel, and returns what comes back."""
    reader, writer, answer = await rig.tunnel(target)
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    try:
        async with asyncio.timeout(SECONDS):
            # Not start_tls of the writer: that one takes no server without a name.
            loop = asyncio.get_running_loop()
            protocol = writer.transport.get_protocol()
            transport = await loop.start_tls(writer.transport, protocol, context, server_hostname=name)
            assert transport is not None
            transport.write(b"hello")
            return await reader.readexactly(5)
    finally:
        writer.transport.abort()


async def test_tls_through_a_tunnel(monkeypatch: pytest.MonkeyPatch, authority: Authority) -> None:
    resolving(monkeypatch, a=HERE)
    async with outside(echo, authority.server("a.test")) as host, proxying(["a.test"]) as rig:
        web_ports(monkeypatch, host.port)
        assert await tls_through(rig, f"a.test:{host.port}", authority.client(), "a.test") == b"hello"
        assert await tls_through(rig, f"A.Test.:{host.port}", authority.client(), "A.TEST") == b"hello"
        await eventually(lambda: rig.proxy.traffic.open == 0)
        assert rig.proxy.traffic.sent_bytes > 300
        assert rig.proxy.traffic.received_bytes > 300
        assert rig.reported == []


async def test_another_name_in_tls_is_denied(monkeypatch: pytest.MonkeyPatch, authority: Authority) -> None:
    """Else a program could reach any site of the same provider by the address of an allowed one."""
    resolving(monkeypatch, a=HERE, b=HERE)
    async with outside(echo, authority.server("b.test")) as host, proxying(["a.test"]) as rig:
        web_ports(monkeypatch, host.port)
        for policy_names_the_port in (False, True):
            if policy_names_the_port:
                rig.egress = rig.egress.with_grant(f"a.test:{host.port}", rig.now)
            rig.reported.clear()
            rig.now += 100
            with pytest.raises(ssl.SSLError, match=r"(?i)access.denied"):
                await tls_through(rig, f"a.test:{host.port}", authority.client(), "b.test")
            [denied] = rig.reported
            assert denied.rule == "server name"
            assert "'b.test'" in denied.why
        await eventually(lambda: host.open == 0)
        assert all(not heard for heard in host.received)


async def test_tls_without_a_name(monkeypatch: pytest.MonkeyPatch, authority: Authority) -> None:
    resolving(monkeypatch, a=HERE)
    context = authority.client()
    context.check_hostname = False
    async with outside(echo, authority.server("a.test")) as host, proxying(["a.test", "127.0.0.1"]) as rig:
        web_ports(monkeypatch, host.port)
        with pytest.raises(ssl.SSLError, match=r"(?i)access.denied"):
            await tls_through(rig, f"a.test:{host.port}", context, None)
        assert "SNI" in rig.reported[0].why
        # An address that is listed has no name. One in TLS would be another host's.
        assert await tls_through(rig, f"127.0.0.1:{host.port}", context, None) == b"hello"
        with pytest.raises(ssl.SSLError, match=r"(?i)access.denied"):
            await tls_through(rig, f"127.0.0.1:{host.port}", context, "a.test")
        rig.egress = rig.egress.with_grant(f"a.test:{host.port}", rig.now)
        assert await tls_through(rig, f"a.test:{host.port}", context, None) == b"hello"


async def test_something_other_than_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, a=HERE)
    async with outside(echo) as host, proxying(["a.test"]) as rig:
        web_ports(monkeypatch, host.port)
        reader, writer, _ = await rig.tunnel(f"a.test:{host.port}")
        writer.write(b"SSH-2.0-x\r\n")
        assert await reader.read() == b""
        writer.close()
        assert rig.reported[0].rule == "TLS only"
        assert f'allow("a.test:{host.port}"' in rig.reported[0].ask
        rig.egress = rig.egress.with_grant(f"a.test:{host.port}", rig.now)
        reader, writer, _ = await rig.tunnel(f"a.test:{host.port}")
        writer.write(b"SSH-2.0-x\r\n")
        writer.write_eof()
        async with asyncio.timeout(SECONDS):
            assert await reader.read() == b"SSH-2.0-x\r\n"
        writer.close()


async def test_a_host_that_speaks_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 ready\r\n")
        await echo(reader, writer)

    resolving(monkeypatch, a=HERE)
    async with outside(greet) as host, proxying([f"a.test:{host.port}"]) as rig:
        reader, writer, _ = await rig.tunnel(f"a.test:{host.port}")
        async with asyncio.timeout(SECONDS):
            assert await reader.readline() == b"220 ready\r\n"
            writer.write(b"HELO\r\n")
            assert await reader.readline() == b"HELO\r\n"
            writer.write_eof()
            assert await reader.read() == b""
        writer.close()


async def test_bytes_that_come_with_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, a=HERE)
    async with outside(echo) as host, proxying([f"a.test:{host.port}"]) as rig:
        for version in ("1.0", "1.1"):
            head = f"CONNECT a.test:{host.port} HTTP/{version}\r\nHost: a.test\r\n\r\nearly"
            assert (await rig.exchange(head.encode())).endswith(b"\r\n\r\nearly")


@pytest.mark.parametrize(
    "head",
    [
        *("CONNECT a.test HTTP/1.1\r\nHost: a.test", "CONNECT http://a.test:443/ HTTP/1.1\r\nHost: a.test"),
        *(
            "CONNECT a.test:443@b.test:443 HTTP/1.1\r\nHost: a.test",
            "CONNECT u@a.test:443 HTTP/1.1\r\nHost: a.test",
        ),
        *("CONNECT a.test:443 HTTP/1.1\r\nHost: b.test", "CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:80"),
        *(
            "CONNECT a.test:443 HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5",
            "CONNECT /x HTTP/1.1\r\nHost: a.test",
        ),
        *("CONNECT a.test:443 HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked", "CONNECT * HTTP/1.0"),
    ],
)
async def test_connect_that_could_be_read_in_two_ways(monkeypatch: pytest.MonkeyPatch, head: str) -> None:
    asked = resolving(monkeypatch, a=HERE, b=HERE)
    async with proxying("public") as rig:
        answer = await rig.exchange(head.encode() + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 "), answer
        assert asked == []


@pytest.mark.parametrize(
    "target",
    [
        *("127.0.0.1:443", "127.1:443", "2130706433:443", "0x7f000001:443", "0177.0.0.1:443", "[::1]:443"),
        *("[::ffff:127.0.0.1]:443", "169.254.169.254:443", "[fd00:ec2::254]:443", "evila.test:443"),
        *("a.test:22", "a.test.evil.test:443", "b.a.test:443", "localhost:443"),
    ],
)
async def test_a_denied_tunnel(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    asked = resolving(monkeypatch, a=HERE)
    async with proxying(["a.test"]) as rig:
        answer = await rig.exchange(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 403 Sandlot denied ")
        assert len(rig.reported) == 1
        assert asked == []


async def test_a_tunnel_for_http_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some tools open a tunnel for http too. A request in it for another host must not get through."""
    resolving(monkeypatch, a=HERE)
    async with outside(answering(OK)) as host, proxying(["a.test"]) as rig:
        web_ports(monkeypatch, host.port)
        monkeypatch.setattr(conversation, "HTTP_PORT", host.port)
        target = f"a.test:{host.port}"
        connect = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode()
        request = f"GET /x HTTP/1.1\r\nHost: {target}\r\n\r\n".encode()
        answer = await rig.exchange(connect + request + request)
        assert answer.count(b"hello") == 2
        assert len(host.received) == 2
        for other in (
            request.replace(b"a.test", b"b.test"),
            request.replace(b"/x", f"http://{target}/".encode()),
            connect,
            b"\x16\x03\x01\x00\x05hello",
        ):
            assert b"HTTP/1.1 400 " in await rig.exchange(connect + other)
        assert len(host.received) == 2


async def test_a_change_of_the_policy_ends_what_it_denies(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, a=HERE, b=HERE)
    async with outside(echo) as host, proxying([f"b.test:{host.port}"]) as rig:
        rig.egress = rig.egress.with_grant(f"a.test:{host.port}", rig.now, 10)
        (a, a_writer, _), (b, b_writer, _) = [await rig.tunnel(f"{name}.test:{host.port}") for name in "ab"]
        rig.proxy.recheck()
        async with asyncio.timeout(SECONDS):
            for reader, writer in ((a, a_writer), (b, b_writer)):
                writer.write(b"hello")
                assert await reader.readexactly(5) == b"hello"
            rig.now += 10
            rig.proxy.recheck()
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await a.readexactly(1)
            b_writer.write(b"hello")
            assert await b.readexactly(5) == b"hello"
        a_writer.close()
        b_writer.close()


async def test_a_hello_that_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, a=HERE)
    async with outside(echo) as host, proxying(["a.test"], head_s=0.2) as rig:
        web_ports(monkeypatch, host.port)
        reader, writer, _ = await rig.tunnel(f"a.test:{host.port}")
        writer.write(b"\x16\x03\x01")
        async with asyncio.timeout(SECONDS):
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
        writer.close()
        await eventually(lambda: rig.proxy.traffic.open == 0)


async def test_a_garbled_hello(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, a=HERE)
    async with outside(echo) as host, proxying(["a.test"]) as rig:
        web_ports(monkeypatch, host.port)
        reader, writer, _ = await rig.tunnel(f"a.test:{host.port}")
        writer.write(b"\x16\x03\x01\x00\x04\x02\x00\x00\x00")
        async with asyncio.timeout(SECONDS):
            assert await reader.read() == ACCESS_DENIED
        writer.close()

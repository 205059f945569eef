"""Gateways: a program calls an upstream by name, and the worker adds the secret outside of the sandbox."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.network.rig import (
    OK,
    SECONDS,
    Authority,
    Outside,
    Rig,
    answering,
    brokering,
    new_authority,
    outside,
    proxying,
    resolving,
)

from sandlot.domain.secrets.gateways import parse_gateways
from sandlot.domain.secrets.placement import parse_placement
from sandlot.domain.secrets.secret import Secret

HERE = ["127.0.0.1"]
VALUE = "sk-live-0123456789abcdef"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return new_authority(tmp_path_factory.mktemp("authority"))


def secret(host: Outside, form: str = "Authorization: Bearer {secret}", **fields: Any) -> Secret:
    return Secret("api", VALUE, (f"a.test:{host.port}",), parse_placement(form), **fields)


@contextlib.asynccontextmanager
async def gateway(
    host: Outside,
    known: Secret | None,
    authority: Authority,
    folder: Path,
    policy: Any = "none",
    path: str = "",
) -> AsyncIterator[Rig]:
    declared = parse_gateways({"api": {"upstream": f"https://a.test:{host.port}{path}", "secret": "api"}})
    async with (
        brokering(folder, [] if known is None else [known], gateways=declared) as broker,
        proxying(policy, broker=broker, trust=authority.client()) as rig,
    ):
        yield rig


async def test_the_upstream_gets_the_secret_and_the_program_does_not(
    monkeypatch: pytest.MonkeyPatch, authority: Authority, tmp_path: Path
) -> None:
    resolving(monkeypatch, a=HERE)
    async with (
        outside(answering(OK), authority.server("a.test")) as host,
        gateway(host, secret(host), authority, tmp_path) as rig,
    ):
        answer = await rig.get(
            "http://gateway.sandlot/api/v1/models?limit=2",
            "Authorization: Bearer made-up",
            "Accept-Encoding: gzip",
            "X-Kept: 1",
        )
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.endswith(b"\r\n\r\nhello")
        [heard] = host.received
        assert bytes(heard).lower().split(b"\r\n") == [
            b"get /v1/models?limit=2 http/1.1",
            b"host: a.test:%d" % host.port,
            b"x-kept: 1",
            b"connection: close",
            b"accept-encoding: identity",
            b"authorization: bearer " + VALUE.encode(),
            b"",
            b"",
        ]
        assert VALUE.encode() not in answer
        assert rig.reported == []
        assert rig.proxy.traffic.requests == 1


async def test_a_body_and_several_requests(
    monkeypatch: pytest.MonkeyPatch, authority: Authority, tmp_path: Path
) -> None:
    resolving(monkeypatch, a=HERE)
    request = b"POST http://gateway.sandlot/api/x HTTP/1.1\r\nHost: gateway.sandlot\r\nContent-Length: 4\r\n\r\nbody"
    async with (
        outside(answering(OK), authority.server("a.test")) as host,
        gateway(host, secret(host, "?key={secret}"), authority, tmp_path) as rig,
    ):
        answer = await rig.exchange(request + request)
        assert answer.count(b"hello") == 2
        assert len(host.received) == 2
        for heard in host.received:
            assert heard.startswith(b"POST /x?key=" + VALUE.encode() + b" HTTP/1.1\r\n")
            assert heard.endswith(b"\r\n\r\nbody")


@pytest.mark.parametrize(
    "head",
    [
        "GET /api/v1 HTTP/1.1\r\nHost: 127.0.0.1:3128",
        "GET /api/v1 HTTP/1.1\r\nHost: localhost:3128",
        "GET http://Gateway.Sandlot.:80/api/v1 HTTP/1.1\r\nHost: gateway.sandlot",
        "CONNECT gateway.sandlot:80 HTTP/1.1\r\nHost: gateway.sandlot\r\n\r\n"
        "GET /api/v1 HTTP/1.1\r\nHost: gateway.sandlot",
    ],
)
async def test_ways_to_call_a_gateway(
    monkeypatch: pytest.MonkeyPatch, authority: Authority, tmp_path: Path, head: str
) -> None:
    resolving(monkeypatch, a=HERE)
    async with (
        outside(answering(OK), authority.server("a.test")) as host,
        gateway(host, secret(host), authority, tmp_path) as rig,
    ):
        assert (await rig.exchange(head.encode() + b"\r\n\r\n")).endswith(b"hello")
        assert bytes(host.received[0]).startswith(b"GET /v1 HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("path", "asked"),
    [("/api", b"/base"), ("/api?x=1", b"/base?x=1"), ("/api/", b"/base/"), ("/api/a%2Fb", b"/base/a%2Fb")],
)
async def test_an_upstream_with_a_path(
    monkeypatch: pytest.MonkeyPatch, authority: Authority, tmp_path: Path, path: str, asked: bytes
) -> None:
    resolving(monkeypatch, a=HERE)
    async with (
        outside(answering(OK), authority.server("a.test")) as host,
        gateway(host, secret(host), authority, tmp_path, path="/base/") as rig,
    ):
        await rig.get(f"http://gateway.sandlot{path}")
        assert bytes(host.received[0]).startswith(b"GET " + asked + b" HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "path", ["/api/../x", "/api/%2e%2e/x", "/api/..%2fx", "/api/x/.%2E", "/api/..%5cx", "/./api/x", "/../x"]
)
async def test_a_path_cannot_leave_the_upstreams_own(
    monkeypatch: pytest.MonkeyPatch, authority: Authority, tmp_path: Path, path: str
) -> None:
    asked = resolving(monkeypatch, a=HERE)
    async with (
        outside(answering(OK), authority.server("a.test")) as host,
        gateway(host, secret(host), authority, tmp_path, path="/base") as rig,
    ):
        answer = await rig.get(f"http://gateway.sandlot{path}")
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert asked == []


async def test_an_unknown_gateway(authority: Authority, tmp_path: Path) -> None:
    async with outside(answering(OK)) as host, gateway(host, None, authority, tmp_path) as rig:
        answer = await rig.get("http://gateway.sandlot/apis/v1")
        assert answer.startswith(b"HTTP/1.1 404 Unknown gateway\r\n")
        assert b"no gateway 'apis'. Did you mean 'api'? It has: api." in answer
    async with proxying("public") as rig:
        assert b"It has none." in await rig.get("http://gateway.sandlot/api/v1")
        for request in (
            "CONNECT gateway.sandlot:443 HTTP/1.1\r\nHost: gateway.sandlot\r\n\r\n",
            "GET http://gateway.sandlot:81/api HTTP/1.1\r\nHost: gateway.sandlot:81\r\n\r\n",
        ):
            answer = await rig.exchange(request.encode())
            assert answer.startswith(b"HTTP/1.1 400 "), answer
            assert b"Gateways speak http" in answer


@pytest.mark.parametrize(
    "change", [None, {"tenants": ("other",)}, {"environments": ("other",)}, {"hosts": ("b.test",)}]
)
async def test_a_session_that_may_not_use_the_secret(
    monkeypatch: pytest.MonkeyPatch, authority: Authority, tmp_path: Path, change: dict[str, Any] | None
) -> None:
    """The rules of the secret decide, and not the gateway that names it."""
    asked = resolving(monkeypatch, a=HERE)
    async with outside(answering(OK), authority.server("a.test")) as host:
        fields = {"hosts": (f"a.test:{host.port}",), **(change or {})}
        known = Secret("api", VALUE, placement=parse_placement("X-Key: {secret}"), **fields)
        async with gateway(host, None if change is None else known, authority, tmp_path) as rig:
            answer = await rig.get("http://gateway.sandlot/api/v1")
            assert answer.startswith(b"HTTP/1.1 403 Sandlot denied gateway.sandlot/api (secret: api)")
            assert b"sandlot secrets set api" in answer
            assert VALUE.encode() not in answer
            assert [denied.rule for denied in rig.reported] == ["secret: api"]
            assert asked == []


async def test_a_rule_that_denies_the_upstream_wins(
    monkeypatch: pytest.MonkeyPatch, authority: Authority, tmp_path: Path
) -> None:
    asked = resolving(monkeypatch, a=HERE)
    async with (
        outside(answering(OK), authority.server("a.test")) as host,
        gateway(host, secret(host), authority, tmp_path, {"deny": ["a.test"]}) as rig,
    ):
        assert (await rig.get("http://gateway.sandlot/api/v1")).startswith(b"HTTP/1.1 403 ")
        assert asked == []


async def test_another_servers_certificate_gets_no_secret(
    monkeypatch: pytest.MonkeyPatch, authority: Authority, tmp_path: Path
) -> None:
    resolving(monkeypatch, a=HERE)
    stranger = new_authority(tmp_path)
    for server in (authority.server("b.test"), stranger.server("a.test")):
        async with (
            outside(answering(OK), server) as host,
            gateway(host, secret(host), authority, tmp_path) as rig,
        ):
            answer = await rig.get("http://gateway.sandlot/api/v1")
            assert answer.startswith(b"HTTP/1.1 502 ")
            assert b"cannot be reached: TLS failed (" in answer
            assert host.received == []


async def test_a_secret_that_comes_back_is_masked(
    monkeypatch: pytest.MonkeyPatch, authority: Authority, tmp_path: Path
) -> None:
    """An API may show the request that it got. Pieces of any size hide nothing."""

    async def repeating(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = b"you sent: " + head + b"and nothing else"
        writer.write(b"HTTP/1.1 200 I saw " + VALUE.encode() + b"\r\nx-seen: " + VALUE.encode() + b"\r\n")
        writer.write(b"content-length: %d\r\n\r\n" % len(body))
        for at in range(0, len(body), 7):
            writer.write(body[at : at + 7])
            await writer.drain()
            await asyncio.sleep(0)

    resolving(monkeypatch, a=HERE)
    async with (
        outside(repeating, authority.server("a.test")) as host,
        gateway(host, secret(host), authority, tmp_path) as rig,
    ):
        answer = await rig.get("http://gateway.sandlot/api/v1")
        assert VALUE.encode() in host.received[0]
        assert VALUE.encode() not in answer
        assert b"x-seen: ***\r\n" in answer
        assert b"authorization: Bearer " + b"*" * len(VALUE) + b"\r\n" in answer
        assert answer.endswith(b"and nothing else")


async def test_trace_is_refused(
    monkeypatch: pytest.MonkeyPatch, authority: Authority, tmp_path: Path
) -> None:
    asked = resolving(monkeypatch, a=HERE)
    async with (
        outside(answering(OK), authority.server("a.test")) as host,
        gateway(host, secret(host), authority, tmp_path) as rig,
    ):
        request = b"TRACE http://gateway.sandlot/api/ HTTP/1.1\r\nHost: gateway.sandlot\r\n\r\n"
        assert (await rig.exchange(request)).startswith(b"HTTP/1.1 400 ")
        assert asked == []


async def test_a_gateway_without_a_secret_may_be_http(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And may lead to a private address, because the operator named it: loopback is not allowed here."""
    resolving(monkeypatch, a=HERE)
    async with outside(answering(OK)) as host:
        declared = parse_gateways({"mirror": {"upstream": f"http://a.test:{host.port}/pub"}})
        async with (
            brokering(tmp_path, [], gateways=declared) as broker,
            proxying([f"a.test:{host.port}"], allowed=(), broker=broker) as rig,
        ):
            assert (await rig.get("http://gateway.sandlot/mirror/x")).endswith(b"hello")
            assert bytes(host.received[0]).startswith(b"GET /pub/x HTTP/1.1\r\n")
            assert (await rig.get(f"http://a.test:{host.port}/")).startswith(b"HTTP/1.1 403 ")


async def test_caps_hold_for_gateways(
    monkeypatch: pytest.MonkeyPatch, authority: Authority, tmp_path: Path
) -> None:
    resolving(monkeypatch, a=HERE)
    async with (
        outside(answering(OK), authority.server("a.test")) as host,
        gateway(host, secret(host), authority, tmp_path, {"caps": {"bytes": 250}}) as rig,
    ):
        answers = [await rig.get("http://gateway.sandlot/api/v1") for _ in range(4)]
        assert answers[0].startswith(b"HTTP/1.1 200 ")
        assert answers[-1].startswith(b"HTTP/1.1 403 ")
        assert b"caps: bytes" in answers[-1]


async def test_events_are_not_held_back(
    monkeypatch: pytest.MonkeyPatch, authority: Authority, tmp_path: Path
) -> None:
    """A model's answer comes in pieces, and each must arrive before the next is written."""
    arrived = asyncio.Event()

    async def streaming(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n")
        await writer.drain()
        await arrived.wait()
        writer.write(b"0\r\n\r\n")

    resolving(monkeypatch, a=HERE)
    async with (
        outside(streaming, authority.server("a.test")) as host,
        gateway(host, secret(host), authority, tmp_path) as rig,
    ):
        reader, writer = await rig.connect()
        writer.write(b"GET http://gateway.sandlot/api/ HTTP/1.1\r\nHost: gateway.sandlot\r\n\r\n")
        async with asyncio.timeout(SECONDS):
            assert b"200" in await reader.readuntil(b"\r\n\r\n")
            assert await reader.readuntil(b"\n\n") == b"9\r\ndata: 1\n\n"
            arrived.set()
            assert await reader.readuntil(b"0\r\n\r\n") == b"\r\n0\r\n\r\n"
        writer.close()

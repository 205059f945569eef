"""Secrets by reading TLS: the program speaks to a host as ever, and the worker adds the secret on the way."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ssl
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from tests.unit.network.rig import (
    OK,
    SECONDS,
    Authority,
    Outside,
    Rig,
    answering,
    brokering,
    echo,
    eventually,
    new_authority,
    outside,
    proxying,
    resolving,
)

from sandlot.domain.errors import EngineProblem
from sandlot.domain.network import rules
from sandlot.domain.secrets.placement import parse_placement
from sandlot.domain.secrets.secret import Secret
from sandlot.worker.network.broker import authority as authority_module
from sandlot.worker.network.broker.authority import Authority as WorkerAuthority

HERE = ["127.0.0.1"]
VALUE = "ghp_0123456789abcdef"


@pytest.fixture(scope="module")
def outer(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Who signs the certificates of hosts outside."""
    return new_authority(tmp_path_factory.mktemp("outer"))


@contextlib.asynccontextmanager
async def injecting(
    monkeypatch: pytest.MonkeyPatch,
    host: Outside,
    outer: Authority,
    folder: Path,
    policy: Any = None,
    **fields: Any,
) -> AsyncIterator[tuple[Rig, ssl.SSLContext]]:
    """A session whose environment has the secret injected, and what its programs trust."""
    monkeypatch.setattr(rules, "WEB_PORTS", (host.port,))
    placement = parse_placement("Authorization: token {secret}")
    known = Secret("github", VALUE, **{"hosts": (f"a.test:{host.port}",), "placement": placement, **fields})
    own = WorkerAuthority.open(folder / "tls", "worker-1")
    async with (
        brokering(folder, [known], inject=["github"], authority=own) as broker,
        proxying(
            ["a.test", "b.test"] if policy is None else policy, broker=broker, trust=outer.client()
        ) as rig,
    ):
        yield rig, ssl.create_default_context(cadata=own.pem)


async def say(
    rig: Rig, target: str, trust: ssl.SSLContext, request: bytes, name: str = "a.test"
) -> tuple[bytes, ssl.SSLObject]:
    """What comes back on a request in TLS in a tunnel, and the TLS that was spoken."""
    reader, writer, answer = await rig.tunnel(target)
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    try:
        async with asyncio.timeout(SECONDS):
            await writer.start_tls(trust, server_hostname=name)
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            return head + await reader.readexactly(size), writer.get_extra_info("ssl_object")
    finally:
        writer.transport.abort()


def get(host: Outside, *headers: str) -> bytes:
    return "\r\n".join(["GET /user HTTP/1.1", f"Host: a.test:{host.port}", *headers, "", ""]).encode()


async def test_the_host_gets_the_secret_and_the_program_does_not(
    monkeypatch: pytest.MonkeyPatch, outer: Authority, tmp_path: Path
) -> None:
    resolving(monkeypatch, a=HERE)
    async with (
        outside(answering(OK), outer.server("a.test")) as host,
        injecting(monkeypatch, host, outer, tmp_path) as (rig, trust),
    ):
        trust.set_alpn_protocols(["h2", "http/1.1"])
        answer, tls = await say(rig, f"a.test:{host.port}", trust, get(host, "Authorization: token mine"))
        assert answer.endswith(b"hello")
        [heard] = host.received
        assert b"authorization: token " + VALUE.encode() in bytes(heard)
        assert b"mine" not in heard
        assert VALUE.encode() not in answer
        assert tls.selected_alpn_protocol() == "http/1.1"
        shown = x509.load_der_x509_certificate(tls.getpeercert(binary_form=True) or b"")
        assert shown.not_valid_after_utc - datetime.datetime.now(datetime.UTC) <= datetime.timedelta(hours=24)
        assert rig.reported == []


async def test_other_hosts_are_not_read(
    monkeypatch: pytest.MonkeyPatch, outer: Authority, tmp_path: Path
) -> None:
    """The program sees the certificate of the host itself, and the worker sees nothing but bytes."""
    resolving(monkeypatch, b=HERE)
    async with (
        outside(answering(OK), outer.server("b.test")) as host,
        injecting(monkeypatch, host, outer, tmp_path) as (rig, _),
    ):
        request = get(host).replace(b"a.test", b"b.test")
        answer, _ = await say(rig, f"b.test:{host.port}", outer.client(), request, "b.test")
        assert answer.endswith(b"hello")
        assert b"authorization" not in host.received[0].lower()


@pytest.mark.parametrize("fields", [{"tenants": ("other",)}, {"environments": ("other",)}])
async def test_a_session_that_may_not_use_the_secret_is_not_read(
    monkeypatch: pytest.MonkeyPatch, outer: Authority, tmp_path: Path, fields: dict[str, Any]
) -> None:
    resolving(monkeypatch, a=HERE)
    async with (
        outside(answering(OK), outer.server("a.test")) as host,
        injecting(monkeypatch, host, outer, tmp_path, **fields) as (rig, _),
    ):
        answer, _ = await say(rig, f"a.test:{host.port}", outer.client(), get(host))
        assert answer.endswith(b"hello")
        assert VALUE.encode() not in host.received[0]


async def test_the_policy_still_decides(
    monkeypatch: pytest.MonkeyPatch, outer: Authority, tmp_path: Path
) -> None:
    """A secret opens no host. And a grant that ends in the middle of a connection ends its next request."""
    asked = resolving(monkeypatch, a=HERE)
    async with (
        outside(answering(OK), outer.server("a.test")) as host,
        injecting(monkeypatch, host, outer, tmp_path, policy="none") as (rig, trust),
    ):
        target = f"a.test:{host.port}"
        refused = await rig.exchange(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        assert refused.startswith(b"HTTP/1.1 403 ")
        assert asked == []
        rig.egress = rig.egress.with_grant("a.test", rig.now, 10)
        reader, writer, _ = await rig.tunnel(target)
        async with asyncio.timeout(SECONDS):
            await writer.start_tls(trust, server_hostname="a.test")
            writer.write(get(host))
            await reader.readuntil(b"hello")
            rig.now += 10
            writer.write(get(host))
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 403 Sandlot denied")
        writer.transport.abort()
        assert len(host.received) == 1


async def test_a_request_for_another_host_inside(
    monkeypatch: pytest.MonkeyPatch, outer: Authority, tmp_path: Path
) -> None:
    resolving(monkeypatch, a=HERE, b=HERE)
    async with (
        outside(answering(OK), outer.server("a.test")) as host,
        injecting(monkeypatch, host, outer, tmp_path) as (rig, trust),
    ):
        for wrong in (
            get(host).replace(b"a.test", b"b.test"),
            get(host).replace(b"/user", b"http://b.test/"),
        ):
            answer, _ = await say(rig, f"a.test:{host.port}", trust, wrong)
            assert answer.startswith(b"HTTP/1.1 400 ")
        with pytest.raises(ssl.SSLError, match=r"(?i)access.denied"):
            await say(rig, f"a.test:{host.port}", trust, get(host), "b.test")
        assert [denied.rule for denied in rig.reported] == ["server name"]
        assert host.received == []


async def test_a_host_with_a_wrong_certificate_gets_no_secret(
    monkeypatch: pytest.MonkeyPatch, outer: Authority, tmp_path: Path
) -> None:
    """The program trusts the worker, so the worker must look at least as closely as the program would."""
    resolving(monkeypatch, a=HERE)
    stranger = new_authority(tmp_path)
    for server in (outer.server("b.test"), stranger.server("a.test")):
        async with (
            outside(answering(OK), server) as host,
            injecting(monkeypatch, host, outer, tmp_path) as (rig, trust),
        ):
            answer, _ = await say(rig, f"a.test:{host.port}", trust, get(host))
            assert answer.startswith(b"HTTP/1.1 502 ")
            assert b"TLS failed" in answer
            assert host.received == []


async def test_a_program_that_does_not_trust_the_worker(
    monkeypatch: pytest.MonkeyPatch, outer: Authority, tmp_path: Path
) -> None:
    resolving(monkeypatch, a=HERE)
    async with (
        outside(answering(OK), outer.server("a.test")) as host,
        injecting(monkeypatch, host, outer, tmp_path) as (rig, _),
    ):
        with pytest.raises(ssl.SSLCertVerificationError):
            await say(rig, f"a.test:{host.port}", outer.client(), get(host))
        await eventually(lambda: rig.proxy.traffic.open == 0)
        assert host.received == []


async def test_something_other_than_tls_is_denied(
    monkeypatch: pytest.MonkeyPatch, outer: Authority, tmp_path: Path
) -> None:
    """Also where a rule names the port: what the worker cannot read, it passes to no host of a secret."""
    resolving(monkeypatch, a=HERE)
    async with (
        outside(echo) as host,
        injecting(monkeypatch, host, outer, tmp_path, policy=[f"a.test:{host.port}"]) as (rig, _),
    ):
        reader, writer, _ = await rig.tunnel(f"a.test:{host.port}")
        writer.write(b"SSH-2.0-x\r\n")
        async with asyncio.timeout(SECONDS):
            assert await reader.read() == b""
        writer.close()
        assert [denied.rule for denied in rig.reported] == ["TLS only"]
        assert host.received == []


async def test_large_bodies_both_ways(
    monkeypatch: pytest.MonkeyPatch, outer: Authority, tmp_path: Path
) -> None:
    size = 3_000_000

    async def upload(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(size)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        writer.write(body[::-1])
        await writer.drain()

    resolving(monkeypatch, a=HERE)
    body = bytes(range(250)) * (size // 250)
    async with (
        outside(upload, outer.server("a.test")) as host,
        injecting(monkeypatch, host, outer, tmp_path) as (rig, trust),
    ):
        request = get(host, f"Content-Length: {size}") + body
        answer, _ = await say(rig, f"a.test:{host.port}", trust, request.replace(b"GET", b"PUT", 1))
        assert answer.endswith(body[::-1])


# --- the authority ----------------------------------------------------------------------------------


def test_the_key_is_for_its_owner_alone_and_stays(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    first = WorkerAuthority.open(folder, "worker-1")
    assert {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {
        "ca.key": 0o600,
        "ca.pem": 0o600,
    }
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert WorkerAuthority.open(folder, "worker-1").pem == first.pem
    assert "PRIVATE" not in first.pem
    certificate = x509.load_pem_x509_certificate(first.pem.encode())
    assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0


def test_a_new_one_is_made_before_the_old_one_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = WorkerAuthority.open(tmp_path, "worker-1")
    monkeypatch.setattr(authority_module, "RENEW_DAYS", authority_module.AUTHORITY_DAYS + 1)
    assert WorkerAuthority.open(tmp_path, "worker-1").pem != first.pem


def test_files_that_cannot_be_used_are_an_error_that_says_so(tmp_path: Path) -> None:
    WorkerAuthority.open(tmp_path, "worker-1")
    (tmp_path / "ca.key").chmod(0o640)
    with pytest.raises(EngineProblem, match="chmod 600"):
        WorkerAuthority.open(tmp_path, "worker-1")
    (tmp_path / "ca.key").chmod(0o600)
    WorkerAuthority.open(tmp_path / "other", "worker-2")
    (tmp_path / "other" / "ca.pem").replace(tmp_path / "ca.pem")
    with pytest.raises(EngineProblem, match="do not belong together"):
        WorkerAuthority.open(tmp_path, "worker-1")
    (tmp_path / "ca.key").write_bytes(b"nonsense")
    with pytest.raises(EngineProblem, match=r"Delete ca\.key"):
        WorkerAuthority.open(tmp_path, "worker-1")


def test_certificates_are_kept_for_a_while_and_not_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = WorkerAuthority.open(tmp_path, "worker-1")
    assert own.context_for("a.test") is own.context_for("a.test")
    monkeypatch.setattr(authority_module, "MAX_HOSTS", 2)
    first = own.context_for("a.test")
    own.context_for("b.test")
    own.context_for("c.test")
    assert own.context_for("a.test") is not first
    renewed = own.context_for("c.test")
    monkeypatch.setattr(authority_module, "RENEW_HOURS", 25)
    assert own.context_for("c.test") is not renewed

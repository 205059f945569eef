"""A proxy on loopback in place of the sandbox's end, and hosts outside that are stand-ins on loopback too."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sandlot.domain.network.addresses import parse_networks
from sandlot.domain.network.decisions import Denied
from sandlot.domain.network.policy import parse_policy
from sandlot.domain.network.session_egress import SessionEgress
from sandlot.domain.secrets.secret import Secret
from sandlot.worker.network.broker.broker import Broker
from sandlot.worker.network.dialer import Dialer
from sandlot.worker.network.options import ProxyOptions
from sandlot.worker.network.proxy import EgressProxy
from sandlot.worker.network.streams import HostStream
from sandlot.worker.secrets.store import SecretStore
from sandlot.worker.secrets.vault import Vault

LOOPBACK = parse_networks(["127.0.0.0/8"])
SECONDS = 20.0  # tells slow from never

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def resolving(monkeypatch: pytest.MonkeyPatch, **answers: Sequence[str]) -> list[str]:
    """Lets NAME.test resolve to the given addresses, one after the other if there is more than one question.
    Addresses of one answer are separated by spaces. All other names of .test are unknown. Returns the names
    that were asked for."""
    real, asked = socket.getaddrinfo, list[str]()

    def getaddrinfo(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        if not str(host).endswith(".test"):
            return real(host, port, *args, **kwargs)
        name = str(host).removesuffix(".test")
        asked.append(name)
        if name not in answers:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        turn = min(asked.count(name), len(answers[name])) - 1
        return [
            entry for address in answers[name][turn].split() for entry in real(address, port, *args, **kwargs)
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


@dataclass
class Outside:
    """A host outside. ``received``: what came on each of its connections."""

    script: Script
    tls: ssl.SSLContext | None = None
    received: list[bytearray] = field(default_factory=list)
    port: int = 0
    open: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard = bytearray()
        self.received.append(heard)
        self.open += 1
        feed = reader.feed_data

        def feed_data(data: bytes) -> None:
            heard.extend(data)
            feed(data)

        heard.extend(reader._buffer)  # type: ignore[attr-defined]
        reader.feed_data = feed_data  # type: ignore[method-assign]
        try:
            await self.script(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()


@contextlib.asynccontextmanager
async def outside(
    script: Script, tls: ssl.SSLContext | None = None, *, address: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[Outside]:
    host = Outside(script, tls)
    server = await asyncio.start_server(host.serve, address, port, ssl=tls)
    host.port = server.sockets[0].getsockname()[1]
    try:
        yield host
    finally:
        server.close()
        await eventually(lambda: host.open == 0)


def answering(answer: bytes) -> Script:
    """Answers each request on a connection with the same bytes, once it has its head and its length."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if b"content-length: " in head:
                await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
            elif b"transfer-encoding: chunked" in head:
                await reader.readuntil(b"0\r\n\r\n")
            writer.write(answer)
            await writer.drain()

    return script


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


@dataclass
class Rig:
    proxy: EgressProxy
    dialer: Dialer
    egress: SessionEgress
    port: int = 0
    now: float = 1000.0
    reported: list[Denied] = field(default_factory=list)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def exchange(self, request: bytes, *, end: bool = True) -> bytes:
        """Everything that the proxy answers until it closes the connection."""
        reader, writer = await self.connect()
        try:
            async with asyncio.timeout(SECONDS):
                writer.write(request)
                if end:
                    writer.write_eof()
                return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async def get(self, url: str, *headers: str, host: str | None = None) -> bytes:
        host = url.split("/")[2] if host is None else host
        lines = [f"GET {url} HTTP/1.1", f"Host: {host}", *headers, "", ""]
        return await self.exchange("\r\n".join(lines).encode())

    async def tunnel(self, target: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
        reader, writer = await self.connect()
        writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        async with asyncio.timeout(SECONDS):
            return reader, writer, await reader.readuntil(b"\r\n\r\n")


@contextlib.asynccontextmanager
async def brokering(folder: Path, secrets: Sequence[Secret], **declared: Any) -> AsyncIterator[Broker]:
    """The secrets of a worker, for a session of the tenant ``default`` in the environment ``base``."""
    store = SecretStore(folder)
    await store.open()
    for secret in secrets:
        await store.set(secret)
    await store.close()
    vault = Vault(folder)
    await vault.open()
    try:
        yield Broker(vault, "default", "base", **declared)
    finally:
        await vault.close()


@contextlib.asynccontextmanager
async def proxying(
    policy: Any,
    worker: Rig | None = None,
    broker: Broker | None = None,
    trust: ssl.SSLContext | None = None,
    **options: Any,
) -> AsyncIterator[Rig]:
    """``worker``: another session of the same worker. ``trust``: which upstreams the worker trusts."""
    chosen = ProxyOptions(**{"allowed": LOOPBACK, **options})
    dialer = Dialer(chosen, trust) if worker is None else worker.dialer
    rig: Rig
    proxy = EgressProxy(
        lambda: rig.egress,
        dialer,
        chosen,
        lambda denied: rig.reported.append(denied),
        lambda: rig.now,
        broker,
    )
    rig = Rig(proxy, dialer, SessionEgress(parse_policy(policy)))
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(proxy.serve(HostStream(reader, writer))))

    server = await asyncio.start_server(accept, "127.0.0.1", 0, backlog=1024)
    rig.port = server.sockets[0].getsockname()[1]
    try:
        yield rig
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        dialer.close()
        assert [each for each in ended if isinstance(each, Exception)] == []


async def eventually(check: Callable[[], object]) -> None:
    async with asyncio.timeout(SECONDS):
        while not check():
            await asyncio.sleep(0.01)


# --- TLS ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Authority:
    """A certificate authority of a test."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    def server(self, name: str) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(name, key, self.certificate.subject, self.key)
        path = self.folder / f"{name}.pem"
        path.write_bytes(_pem(certificate) + _key_pem(key))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(path)
        return context

    @property
    def pem(self) -> bytes:
        return _pem(self.certificate)

    def client(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.pem.decode())


def new_authority(folder: Path) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test authority")])
    return Authority(folder, key, _certificate("", key, subject, key))


def _certificate(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: x509.Name, signer: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    common_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]) if name else issuer
    signing = not name
    builder = (
        x509.CertificateBuilder()
        .subject_name(common_name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=signing, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if signing:
        use = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(use, critical=True)
    else:
        names = x509.SubjectAlternativeName([x509.DNSName(name)])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(signer, hashes.SHA256())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )

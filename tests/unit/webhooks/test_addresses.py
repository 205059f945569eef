"""A delivery reaches no address that was not checked, whatever a name resolves to."""

from __future__ import annotations

import socket
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.webhooks.receiver import HASTY, PATIENT, Rig, accept, receiving, rig_in

from sandlot.domain.callers.principal import OWNER
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.webhooks.webhook import Webhook
from sandlot.worker.webhooks.options import WebhookOptions

CLOSED = WebhookOptions((), HASTY.schedule)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Lets names resolve as a test says: to these addresses at the first question, to those at the next."""
    real = socket.getaddrinfo

    def resolve(**answers: list[list[str]]) -> list[str]:
        asked: list[str] = []

        def getaddrinfo(host: str, port: Any, *args: Any, **kwargs: Any) -> Any:
            name = str(host).replace(".test", "")
            if name not in answers:
                return real(host, port, *args, **kwargs)
            asked.append(name)
            turn = min(asked.count(name), len(answers[name])) - 1
            return [
                entry for address in answers[name][turn] for entry in real(address, port, *args, **kwargs)
            ]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        return asked

    return resolve


async def dead(rig: Rig, webhook: Webhook) -> str:
    rig.record(1)
    await rig.until(webhook, lambda found: found.dead_letters == 1)
    [letter] = await rig.dead_letters(webhook)
    return str(letter.error)


@pytest.mark.parametrize("host", ["localhost", "127.1", "2130706433", "0x7f.1", "0"])
async def test_loopback_by_any_name(data_dir: Path, host: str) -> None:
    async with rig_in(data_dir, CLOSED) as rig, receiving() as receiver:
        for scheme in ("http", "https"):
            webhook = await rig.create(f"{scheme}://{host}:{receiver.port}/")
            assert "private, local or reserved" in await dead(rig, webhook)
            await rig.webhooks.delete(OWNER, webhook.id)
        assert receiver.connections == 0
        with pytest.raises(InvalidRequest, match="SANDLOT_WEBHOOK_ALLOW"):
            await rig.create(receiver)


async def test_one_private_address_among_public_ones(data_dir: Path, names: Callable[..., list[str]]) -> None:
    names(mixed=[["93.184.216.34", "127.0.0.1"]])
    async with rig_in(data_dir, CLOSED) as rig:
        assert "private, local or reserved" in await dead(rig, await rig.create("https://mixed.test/"))


async def test_a_name_that_resolves_to_another_address_a_moment_later(
    data_dir: Path, names: Callable[..., list[str]]
) -> None:
    """The address that was checked is the one that is connected to: there is no second question."""
    asked = names(rebinding=[["127.0.0.1"], ["127.0.0.2"]])
    async with rig_in(data_dir, PATIENT) as rig, receiving() as receiver:
        webhook = await rig.create(f"http://rebinding.test:{receiver.port}/")
        rig.record(1)
        await rig.until_delivered(webhook, 1)
        assert asked == ["rebinding"]
        assert receiver.requests[0].headers["host"] == f"rebinding.test:{receiver.port}"


async def test_a_name_is_checked_at_each_connection(data_dir: Path, names: Callable[..., list[str]]) -> None:
    """The operator allows loopback, and the name resolves to it when the webhook is new."""
    names(moving=[["127.0.0.1"], ["10.0.0.1"]])
    async with receiving() as receiver:
        async with rig_in(data_dir, HASTY) as rig:
            webhook = await rig.create(f"http://moving.test:{receiver.port}/")
            rig.record(1)
            await rig.until_delivered(webhook, 1)
        async with rig_in(data_dir, HASTY) as rig:
            assert "private, local or reserved" in await dead(rig, webhook)
        assert receiver.numbers == [1]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of receiver.test, and the key after it."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
            ),
            *("-days", "2", "-subj", "/CN=receiver.test", "-addext", "subjectAltName=DNS:receiver.test"),
            *("-keyout", str(folder / "key.pem"), "-out", str(folder / "certificate.pem")),
        ],
        check=True,
        capture_output=True,
    )
    return folder


async def test_the_certificate_must_be_the_receivers(
    data_dir: Path, names: Callable[..., list[str]], certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate / "certificate.pem", certificate / "key.pem")
    wanted: list[str | None] = []
    tls.sni_callback = lambda _socket, name, _context: wanted.append(name)
    names(receiver=[["127.0.0.1"]], other=[["127.0.0.1"]])
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "certificate.pem"))
    async with rig_in(data_dir, HASTY) as rig, receiving(accept, tls=tls) as receiver:
        webhook = await rig.create(f"https://receiver.test:{receiver.port}/")
        rig.record(1)
        await rig.until_delivered(webhook, 1)
        assert wanted == ["receiver.test"]
        await rig.webhooks.delete(OWNER, webhook.id)
        impostor = await rig.create(f"https://other.test:{receiver.port}/")
        assert "Hostname mismatch" in await dead(rig, impostor)
        assert len(receiver.requests) == 1
    monkeypatch.delenv("SSL_CERT_FILE")
    async with rig_in(data_dir, HASTY) as rig, receiving(accept, tls=tls) as receiver:
        unknown = await rig.create(f"https://receiver.test:{receiver.port}/")
        assert "self-signed certificate" in await dead(rig, unknown)
        assert receiver.requests == []


async def test_a_name_without_an_address(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async with rig_in(data_dir, CLOSED) as rig:
        webhook = await rig.create("https://nowhere.test/")
        monkeypatch.setattr(socket, "getaddrinfo", unknown)
        assert "Name or service not known" in await dead(rig, webhook)


async def test_no_proxy_of_the_environment_is_used(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig_in(data_dir) as rig, receiving() as proxy, receiving() as receiver:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        webhook = await rig.create(receiver)
        rig.record(1)
        await rig.until_delivered(webhook, 1)
        assert proxy.connections == 0

"""Secrets of sessions on a worker: what a sandbox gets, and what its programs reach, also after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from tests.unit.network.rig import LOOPBACK, OK, answering, new_authority, outside, resolving
from tests.unit.worker.conftest import Scene
from tests.unit.worker.test_networks import inside

from sandlot.domain.execution import ExecRequest
from sandlot.domain.network.policy import parse_policy
from sandlot.domain.packages.registries import DEFAULT_PYPI, Pypi
from sandlot.domain.secrets.gateways import parse_gateways, parse_upstream
from sandlot.domain.secrets.placement import parse_placement
from sandlot.domain.secrets.secret import Secret
from sandlot.domain.session import CreateSession
from sandlot.worker.network.broker.brokers import Brokers
from sandlot.worker.network.broker.trust import TRUST_PATH
from sandlot.worker.network.cache.package_cache import PackageCache
from sandlot.worker.network.dialer import Dialer
from sandlot.worker.network.options import NetworkOptions, ProxyOptions
from sandlot.worker.secrets.store import SecretStore
from sandlot.worker.secrets.vault import Vault

VALUE = "sk-live-0123456789abcdef"
GET = b"GET http://gateway.sandlot/api/v1 HTTP/1.1\r\nHost: gateway.sandlot\r\nConnection: close\r\n\r\n"
OPEN = NetworkOptions(ceiling=None, proxy=ProxyOptions(allowed=LOOPBACK))


def brokers(folder: Path) -> Brokers:
    """Anew for each life of the worker."""
    dialer = Dialer(ProxyOptions())
    registries = [Pypi(parse_upstream(DEFAULT_PYPI))]
    packages = PackageCache(folder / "packages", 1_000_000, registries, dialer)
    return Brokers(folder, "worker-1", Vault(folder), packages, dialer)


async def test_a_session_uses_a_secret_before_and_after_a_restart(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    resolving(monkeypatch, a=["127.0.0.1"])
    outer = new_authority(tmp_path)
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(outer.certificate.public_bytes(serialization.Encoding.PEM))
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))  # what the machine of this worker trusts
    async with outside(answering(OK), outer.server("a.test")) as host:
        target = f"a.test:{host.port}"
        store = SecretStore(tmp_path)
        await store.open()
        await store.set(Secret("api", VALUE, (target,), parse_placement("Authorization: Bearer {secret}")))
        await store.close()
        declared = {
            "upstream": f"https://{target}",
            "secret": "api",
            "env": {"API_URL": "{gateway}/v1", "MINE": "no"},
        }
        recipe = {"gateways": parse_gateways({"api": declared}), "inject": ("api",)}
        worker = await scene.start(network=OPEN, recipe=recipe, brokers=brokers(tmp_path))
        session = (await worker.create_session(CreateSession(env={"MINE": "yes"}))).session
        sandbox = scene.engine.sandboxes[session.sandbox_id or ""]
        for number in (1, 2):
            await worker.execute(
                session.id, ExecRequest(command="true")
            )  # waits until the sandbox is prepared
            reader, writer = await inside(sandbox)
            writer.write(GET)
            answer = await reader.read()
            writer.close()
            assert answer.startswith(b"HTTP/1.1 200 "), answer
            assert VALUE.encode() not in answer
            assert len(host.received) == number
            assert VALUE.encode() in host.received[-1]
            assert sandbox.env["API_URL"] == "http://gateway.sandlot/api/v1"
            assert sandbox.env["MINE"] == "yes"
            assert sandbox.env["SSL_CERT_FILE"] == TRUST_PATH
            assert "PIP_INDEX_URL" not in sandbox.env  # the session may not reach PyPI
            assert VALUE not in str(sandbox.env)
            bundle = sandbox.files.written.pop(TRUST_PATH)
            assert b"BEGIN CERTIFICATE" in bundle
            assert b"PRIVATE" not in bundle
            if number == 1:
                worker = await scene.restart(worker, network=OPEN, recipe=recipe, brokers=brokers(tmp_path))


async def test_a_session_that_may_reach_pypi_finds_the_cache(scene: Scene, tmp_path: Path) -> None:
    worker = await scene.start(network=OPEN, brokers=brokers(tmp_path))
    session = (await worker.create_session(CreateSession(network=parse_policy(["pypi"])))).session
    sandbox = scene.engine.sandboxes[session.sandbox_id or ""]
    assert sandbox.env["PIP_INDEX_URL"] == "http://gateway.sandlot/pypi/simple/"
    assert sandbox.files.written == {}

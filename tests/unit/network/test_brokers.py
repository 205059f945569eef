"""What a worker's brokers share, and what their sandboxes get."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from tests.unit.network.rig import LOOPBACK

from sandlot.domain.environment import Environment, Recipe
from sandlot.domain.errors import EngineProblem
from sandlot.domain.network.policy import parse_policy
from sandlot.domain.network.session_egress import SessionEgress
from sandlot.domain.packages.registries import DEFAULT_NPM, DEFAULT_PYPI, Npm, Pypi
from sandlot.domain.secrets.gateways import parse_gateways, parse_upstream
from sandlot.domain.session import Session
from sandlot.worker.network.broker.authority import Authority
from sandlot.worker.network.broker.brokers import Brokers
from sandlot.worker.network.broker.trust import trust_bundle, trust_variables
from sandlot.worker.network.cache.package_cache import PackageCache
from sandlot.worker.network.dialer import Dialer
from sandlot.worker.network.options import ProxyOptions
from sandlot.worker.secrets.vault import Vault

PLAIN = Recipe(Environment("base", "sandlot/base"))
GATEWAYS = parse_gateways(
    {
        "api": {
            "upstream": "https://a.test",
            "secret": "api",
            "env": {"API_URL": "{gateway}/v1", "PIP_INDEX_URL": "x"},
        }
    }
)
SESSION = Session(id="ses_1", environment="base", created_at=0, last_active_at=0)


def egress(*allow: str) -> SessionEgress:
    return SessionEgress(parse_policy(list(allow)))


async def test_variables_say_what_a_sandbox_has(tmp_path: Path) -> None:
    dialer = Dialer(ProxyOptions(allowed=LOOPBACK))
    registries = [Pypi(parse_upstream(DEFAULT_PYPI)), Npm(parse_upstream(DEFAULT_NPM))]
    cache = PackageCache(tmp_path / "packages", 1_000_000, registries, dialer)
    brokers = Brokers(tmp_path, "worker-1", Vault(tmp_path), cache)
    await brokers.open()
    assert brokers.variables(PLAIN, egress(), 0) == {}
    assert brokers.variables(PLAIN, egress("npm"), 0) == {
        "npm_config_registry": "http://gateway.sandlot/npm/"
    }
    found = brokers.variables(PLAIN, egress("pypi"), 0)
    assert found == {
        "PIP_INDEX_URL": "http://gateway.sandlot/pypi/simple/",
        "PIP_TRUSTED_HOST": "gateway.sandlot",
        "UV_DEFAULT_INDEX": "http://gateway.sandlot/pypi/simple/",
    }
    # What the operator writes in the environment comes last.
    declared = Recipe(PLAIN.environment, gateways=GATEWAYS)
    found = brokers.variables(declared, egress("pypi"), 0)
    assert (found["API_URL"], found["PIP_INDEX_URL"]) == ("http://gateway.sandlot/api/v1", "x")
    assert brokers.broker_of(SESSION, declared).gateway_names == ("api", "pypi", "npm")
    await brokers.close()
    dialer.close()


async def test_an_authority_is_made_when_an_environment_needs_it(tmp_path: Path) -> None:
    brokers = Brokers(tmp_path, "worker-1", Vault(tmp_path))
    await brokers.open()
    assert brokers.broker_of(SESSION, PLAIN).authority is None
    assert not (tmp_path / "tls").exists()
    injecting = Recipe(PLAIN.environment, inject=("github",))
    own = brokers.broker_of(SESSION, injecting).authority
    assert own is brokers.broker_of(SESSION, injecting).authority
    assert (tmp_path / "tls/ca.key").exists()
    await brokers.close()


def test_a_bundle_has_what_the_machine_trusts_and_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Authority.open(tmp_path, "worker-1")
    bundle = trust_bundle(own.pem)
    context = ssl.create_default_context(cadata=bundle)
    assert len(context.get_ca_certs()) > 10
    assert any("Sandlot worker worker-1" in str(each) for each in context.get_ca_certs())
    assert "PRIVATE" not in bundle
    assert trust_variables("/x/ca.pem")["SSL_CERT_FILE"] == "/x/ca.pem"
    monkeypatch.setattr(Path, "is_file", lambda _: False)
    with pytest.raises(EngineProblem, match="ca-certificates"):
        trust_bundle(own.pem)

"""The operator's settings, and policies that environments declare."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandlot.config.reading import server_settings
from sandlot.config.registry.loading import load_registry
from sandlot.config.registry.recipes import RecipeDefaults
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.network.addresses import parse_networks
from sandlot.domain.network.policy import DEFAULT_CEILING, EgressPolicy, parse_policy
from sandlot.wiring.worker import worker_options


@pytest.mark.parametrize(
    ("given", "ceiling"),
    [
        (None, DEFAULT_CEILING),
        ("any", None),
        ("none", EgressPolicy()),
        ("packages, db.example.com:5432", EgressPolicy(("packages", "db.example.com:5432"))),
    ],
)
def test_the_ceiling(
    monkeypatch: pytest.MonkeyPatch, given: str | None, ceiling: EgressPolicy | None
) -> None:
    if given is not None:
        monkeypatch.setenv("SANDLOT_EGRESS_CEILING", given)
    assert worker_options(server_settings()).network.ceiling == ceiling


@pytest.mark.parametrize(
    ("given", "message"),
    [("pypii", "Did you mean 'pypi'"), ("any,pypi", "stand alone"), ("none,pypi", "stand alone")],
)
def test_a_ceiling_that_means_nothing(monkeypatch: pytest.MonkeyPatch, given: str, message: str) -> None:
    monkeypatch.setenv("SANDLOT_EGRESS_CEILING", given)
    with pytest.raises(InvalidRequest, match=f"SANDLOT_EGRESS_CEILING: .*{message}"):
        server_settings()


def test_addresses_that_are_not_public(monkeypatch: pytest.MonkeyPatch) -> None:
    assert worker_options(server_settings()).network.proxy.allowed == ()
    monkeypatch.setenv("SANDLOT_EGRESS_ALLOW", "10.1.2.0/24, fd00::/8")
    allowed = worker_options(server_settings()).network.proxy.allowed
    assert allowed == parse_networks(["10.1.2.0/24", "fd00::/8"])
    monkeypatch.setenv("SANDLOT_EGRESS_ALLOW", "10.1.2.3/24")
    with pytest.raises(InvalidRequest, match=r"SANDLOT_EGRESS_ALLOW: .*is not a range of addresses"):
        server_settings()


def declared(folder: Path, network: str) -> EgressPolicy:
    (folder / "environments").mkdir(exist_ok=True)
    text = f"name: mine\ndescription: x\nimage: mine\n{network}"
    (folder / "environments" / "mine.yaml").write_text(text)
    registry = load_registry(folder, defaults=RecipeDefaults())
    (shown,) = (each for each in registry.catalogue.environments if each.name == "mine")
    assert shown.network == registry.recipes["mine"].network
    return shown.network


@pytest.mark.parametrize(
    ("network", "policy"),
    [
        ("", "none"),
        ("network: none", "none"),
        ("network: public", "public"),
        ("network: [pypi, a.com]", ["pypi", "a.com"]),
        (
            "network: {allow: [pypi], deny: [a.com], caps: {bytes: 10}}",
            {"allow": ["pypi"], "deny": ["a.com"], "caps": {"bytes": 10}},
        ),
    ],
)
def test_an_environment_declares_its_network(tmp_path: Path, network: str, policy: object) -> None:
    assert declared(tmp_path, network) == parse_policy(policy)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("network: pypi", "Write none, public or a list"),
        ("network: [pypii]", "Did you mean 'pypi'"),
        ("network: {alow: [pypi]}", "Did you mean 'allow'"),
        ("network: {caps: {byte: 1}}", "Did you mean 'bytes'"),
        ("network: 5", "network"),
    ],
)
def test_a_mistake_names_the_file_and_what_was_meant(tmp_path: Path, network: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"(?s)mine\.yaml.*{message}"):
        declared(tmp_path, network)

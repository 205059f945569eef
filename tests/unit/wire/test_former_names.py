"""The names of the first interfaces, on servers with environments at E2B and without."""

from __future__ import annotations

import pytest

from sandlot.domain.environment import ProviderName, Tier
from sandlot.domain.errors import InvalidRequest
from sandlot.wire.former_names import provider_of, resolve_environment

HERE = {"base": Tier.RUNC, "gvisor": Tier.RUNSC}
BOTH = {**HERE, "cloud": Tier.MICROVM}
TWO = {**BOTH, "cloud-node": Tier.MICROVM}


@pytest.mark.parametrize("provider", [None, "docker", "e2b"])
def test_a_server_without_e2b_takes_every_provider_for_itself(provider: str | None) -> None:
    assert resolve_environment("Python3", HERE, provider) is None
    assert resolve_environment("gvisor", HERE, provider) == "gvisor"


@pytest.mark.parametrize(
    ("name", "provider", "meant"),
    [
        ("Python3", None, None),
        ("Python3", "docker", None),
        ("Python3", "e2b", "cloud"),
        (None, "e2b", "cloud"),
        (None, "docker", None),
        ("cloud", "e2b", "cloud"),
        ("cloud", None, "cloud"),
        ("base", "docker", "base"),
    ],
)
def test_one_environment_at_e2b(name: str | None, provider: str | None, meant: str | None) -> None:
    assert resolve_environment(name, BOTH, provider) == meant


@pytest.mark.parametrize(
    ("name", "provider", "told"),
    [
        ("base", "e2b", "Name one of cloud, cloud-node"),
        ("Python3", "e2b", "Name one of cloud, cloud-node"),
        ("cloud", "docker", "Name one of base, gvisor"),
        ("clud", "e2b", "Did you mean 'cloud'"),
        ("base", "e2", "docker or e2b"),
    ],
)
def test_what_is_not_clear_is_refused(name: str, provider: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        resolve_environment(name, TWO, provider)


def test_the_provider_of_an_environment() -> None:
    assert {tier: provider_of(tier) for tier in Tier} == {
        Tier.RUNC: ProviderName.DOCKER,
        Tier.RUNSC: ProviderName.DOCKER,
        Tier.MICROVM: ProviderName.E2B,
    }

"""Which environment a session gets that says what makes its sandbox."""

from __future__ import annotations

import pytest

from sandlot.domain.environment import ProviderName, with_provider
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.session import CreateSession

DOCKER, E2B = ProviderName.DOCKER, ProviderName.E2B
KNOWN = {"base": DOCKER, "slim": DOCKER, "cloud": E2B, "bigger": E2B}


@pytest.mark.parametrize(
    ("asked", "provider", "gets"),
    [
        (None, "docker", "base"),
        (None, "e2b", "bigger"),
        ("cloud", "e2b", "cloud"),
        ("slim", "docker", "slim"),
    ],
)
def test_the_environment(asked: str | None, provider: str, gets: str) -> None:
    request = CreateSession(environment=asked, provider=provider, thread="t")
    assert with_provider(request, KNOWN) == CreateSession(environment=gets, thread="t")


@pytest.mark.parametrize(
    ("asked", "provider", "known", "says"),
    [
        ("slim", "e2b", KNOWN, "Those of e2b are: bigger, cloud"),
        (None, "e2b", {"base": DOCKER}, "no environment of e2b"),
        ("base", "e2b", {"base": DOCKER}, "another provider than e2b"),
        ("base", "dokcer", KNOWN, "Did you mean 'docker'"),
    ],
)
def test_what_does_not_fit(
    asked: str | None, provider: str, known: dict[str, ProviderName], says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says):
        with_provider(CreateSession(environment=asked, provider=provider), known)


def test_without_a_provider_nothing_changes() -> None:
    request = CreateSession(environment="cloud")
    assert with_provider(request, KNOWN) is request


def test_an_unknown_environment_has_its_own_error() -> None:
    request = CreateSession(environment="nowhere", provider="e2b")
    assert with_provider(request, KNOWN) is request

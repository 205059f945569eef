"""Environments at E2B in the registry, and the key that they need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sandlot.config.reading import server_settings
from sandlot.config.registry.recipes import RecipeDefaults, recipe_of
from sandlot.domain.capacity.limits import Limits
from sandlot.domain.environment import ProviderName, Tier
from sandlot.domain.errors import InvalidRequest
from sandlot.wiring.worker import check_no_e2b

CLOUD = {"name": "cloud", "description": "x", "image": "base", "provider": "e2b"}


def recipe(**more: Any) -> Any:
    return recipe_of({**CLOUD, **more}, RecipeDefaults(), {})


def test_an_environment_at_e2b() -> None:
    environment = recipe().environment
    assert (environment.provider, environment.tier) == (ProviderName.E2B, Tier.MICROVM)
    assert not environment.keeps_files
    assert recipe().ceilings == environment.limits == Limits()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"tier": "runsc"}, "has no tier runsc"),
        ({"tier": "runc"}, "has no tier runc"),
        ({"provider": "docker", "tier": "microvm"}, "has no tier microvm"),
        ({"limits": {"memory": "1g"}}, "limits: the template"),
        ({"max_limits": {"memory": "1g"}}, "max_limits: the template"),
        ({"setup": "true"}, "setup and seed need snapshots"),
        ({"seed": "snp_" + "0" * 32}, "setup and seed need snapshots"),
    ],
)
def test_what_e2b_cannot_give_is_refused(more: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        recipe(**more)


def test_a_worker_without_a_key_refuses_such_an_environment() -> None:
    with pytest.raises(InvalidRequest, match="SANDLOT_E2B_API_KEY"):
        check_no_e2b([recipe()])
    check_no_e2b([recipe(provider="docker")])


def test_the_key_comes_from_a_file_or_a_variable(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("e2b_0123\n")
    assert server_settings(e2b_api_key_file=file).e2b_key == "e2b_0123"
    assert server_settings(e2b_api_key="e2b_4567").e2b_key == "e2b_4567"
    assert server_settings().e2b_key is None
    assert "e2b_4567" not in repr(server_settings(e2b_api_key="e2b_4567"))
    with pytest.raises(InvalidRequest, match="not both"):
        _ = server_settings(e2b_api_key="e2b_4567", e2b_api_key_file=file).e2b_key

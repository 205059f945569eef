"""From settings to what sessions share."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from sandlot.config.settings import ServerSettings
from sandlot.domain.environment import Environment, Recipe
from sandlot.domain.session import Session
from sandlot.wiring.brokers import build_brokers, build_vault

KEY = "a-key-for-the-tests"


async def test_a_package_cache_by_choice(tmp_path: Path) -> None:
    session = Session(id="ses_1", environment="base", created_at=0, last_active_at=0)
    recipe = Recipe(Environment("base", "sandlot/base"))
    for chosen, names in ((False, ()), (True, ("pypi", "npm"))):
        settings = ServerSettings(
            data_dir=tmp_path, package_cache=chosen, pypi_index="http://10.1.2.3:3141/root/pypi", api_key=KEY
        )
        vault = build_vault(settings)
        brokers = build_brokers(settings, vault)
        await brokers.open()
        assert vault.masked == [KEY]
        assert brokers.broker_of(session, recipe).gateway_names == names
        assert (tmp_path / "packages").exists() is chosen
        await brokers.close()


@pytest.mark.parametrize(
    "url", ["pypi.org/simple", "https://user:pw@a.test/simple", "https://a.test/simple?x"]
)
def test_an_index_that_is_no_url(url: str) -> None:
    with pytest.raises(ValidationError, match="is not an upstream"):
        ServerSettings(pypi_index=url)

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic_settings import BaseSettings

from sandlot.config.client_settings import DEFAULT_URL, client_settings
from sandlot.config.fleet_settings import FleetSettings
from sandlot.config.settings import ServerSettings, variables
from sandlot.config.variable_names import DEPLOY_VARIABLES
from sandlot.domain.errors import InvalidRequest


def test_what_is_given_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDLOT_URL", "http://there:1/")
    monkeypatch.setenv("SANDLOT_API_KEY", "from-environment")
    assert client_settings().url == "http://there:1"
    assert client_settings().api_key == "from-environment"
    given = client_settings("http://here:2", "given")
    assert (given.url, given.api_key) == ("http://here:2", "given")


def test_an_empty_variable_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDLOT_URL", "")
    monkeypatch.setenv("SANDLOT_API_KEY", "")
    assert client_settings().url == DEFAULT_URL
    assert client_settings().api_key is None


def test_space_around_a_key_is_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDLOT_API_KEY", " from-environment\n")
    assert client_settings().api_key == "from-environment"
    monkeypatch.setenv("SANDLOT_API_KEY", "  ")
    assert client_settings().api_key is None


def test_the_key_is_not_shown() -> None:
    assert "secret" not in repr(client_settings("http://x", "secret"))


def test_the_sdk_gets_no_server_library_by_it() -> None:
    code = "import sys, sandlot.config.client_settings; print({'pydantic', 'yaml', 'jsonschema'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


@pytest.mark.parametrize("variable", ["SANDLOT_APIKEY", "SANDLOT_API_KEYS", "SANDLOT_KEY", "SANDLOT_URI"])
def test_u1_a_near_miss_is_an_error(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "x")
    with pytest.raises(
        InvalidRequest, match=rf"Unknown client setting {variable}\. Did you mean SANDLOT_(API_KEY|URL)"
    ):
        client_settings()
    assert client_settings("http://x", "given").api_key == "given"
    monkeypatch.setenv(variable, "")
    client_settings()


def test_u1_servers_variables_and_those_of_the_program_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: tuple[type[BaseSettings], ...] = (ServerSettings, FleetSettings)
    for kind in kinds:
        for field in kind.model_fields:
            for variable in variables(field, kind):
                monkeypatch.setenv(variable, "x")
    for variable in ("SANDLOT_TENANT_PREFIX", *DEPLOY_VARIABLES):
        monkeypatch.setenv(variable, "x")
    monkeypatch.delenv("SANDLOT_URL", raising=False)
    assert client_settings().url == DEFAULT_URL

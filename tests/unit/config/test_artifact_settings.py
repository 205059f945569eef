from __future__ import annotations

import pytest

from sandlot.config.reading import server_settings
from sandlot.config.registry.recipes import RecipeDefaults, recipe_of
from sandlot.config.settings import ServerSettings, variables
from sandlot.domain.errors import InvalidRequest
from sandlot.wiring.worker import worker_options
from sandlot.worker.artifacts.options import ArtifactOptions


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ServerSettings.model_fields:
        for variable in variables(name):
            monkeypatch.delenv(variable, raising=False)


def test_defaults() -> None:
    assert worker_options(server_settings()).artifacts == ArtifactOptions()


def test_settings_reach_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "MAX_BYTES": "1m",
        "MAX_SESSION_BYTES": "2m",
        "MAX_TENANT_BYTES": "3m",
        "MAX_COUNT": "4",
        "MAX_AGE": "5h",
    }.items():
        monkeypatch.setenv(f"SANDLOT_ARTIFACT_{name}", value)
    mib = 1024 * 1024
    assert worker_options(server_settings()).artifacts == ArtifactOptions(
        max_file_bytes=mib,
        max_session_bytes=2 * mib,
        max_tenant_bytes=3 * mib,
        max_count=4,
        max_age_s=5 * 3600.0,
    )


@pytest.mark.parametrize(("name", "value"), [("MAX_COUNT", "0"), ("MAX_BYTES", "0"), ("MAX_AGE", "never")])
def test_values_out_of_range(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"SANDLOT_ARTIFACT_{name}", value)
    with pytest.raises(InvalidRequest, match=f"SANDLOT_ARTIFACT_{name}"):
        server_settings()


def test_an_environment_declares_artifacts() -> None:
    document = {"name": "e", "description": "x", "image": "i", "artifacts": ["out/", "/workspace/a"]}
    assert recipe_of(document, RecipeDefaults(), {}).artifacts == ("out", "a")
    with pytest.raises(InvalidRequest, match="outside /workspace"):
        recipe_of({**document, "artifacts": ["/etc/passwd"]}, RecipeDefaults(), {})

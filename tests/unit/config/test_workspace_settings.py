from __future__ import annotations

from pathlib import Path

import pytest

from sandlot.config.reading import server_settings
from sandlot.config.settings import ServerSettings, variables
from sandlot.config.workspaces.storage_folder import DEFAULT_STORAGE_DIR, storage_dir
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.session import OnIdle
from sandlot.wiring.worker import worker_options

DAY_S = 24 * 3600.0


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ServerSettings.model_fields:
        for variable in variables(name):
            monkeypatch.delenv(variable, raising=False)


def test_defaults() -> None:
    settings = server_settings()
    assert (settings.workspace_store, settings.storage_dir) == ("auto", Path("/var/lib/sandlot/storage"))
    assert settings.workspace_quota == 10 * 1024**3
    assert (settings.snapshots_per_session, settings.snapshot_max_age) == (1000, 30 * DAY_S)
    assert (settings.on_idle, settings.hibernated_max_age) == (None, 30 * DAY_S)


def test_sizes_and_times_may_have_units_and_reach_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "WORKSPACE_QUOTA": "2g",
        "SNAPSHOTS_PER_SESSION": "7",
        "SNAPSHOT_MAX_AGE": "12h",
        "ON_IDLE": "end",
        "HIBERNATED_MAX_AGE": "2d",
    }.items():
        monkeypatch.setenv(f"SANDLOT_{name}", value)
    options = worker_options(server_settings()).workspaces
    assert (options.quota_bytes, options.max_snapshots) == (2 * 1024**3, 7)
    assert (options.max_age_s, options.hibernation_s) == (DAY_S / 2, 2 * DAY_S)
    assert options.on_idle is OnIdle.END
    monkeypatch.setenv("SANDLOT_WORKSPACE_QUOTA", str(64 * 1024**2))
    monkeypatch.setenv("SANDLOT_SNAPSHOT_MAX_AGE", "90.5")
    settings = server_settings()
    assert (settings.workspace_quota, settings.snapshot_max_age) == (64 * 1024**2, 90.5)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("SANDLOT_WORKSPACE_STORE", "zfs", "'auto', 'btrfs' or 'volume'"),
        ("SANDLOT_WORKSPACE_QUOTA", "lots", "not a valid size"),
        ("SANDLOT_WORKSPACE_QUOTA", "1k", "greater than or equal"),
        ("SANDLOT_SNAPSHOT_MAX_AGE", "never", "cannot be never"),
        ("SANDLOT_SNAPSHOT_MAX_AGE", "soon", "not a valid time"),
        ("SANDLOT_HIBERNATED_MAX_AGE", "-1", "not a valid time"),
        ("SANDLOT_ON_IDLE", "sleep", "'hibernate' or 'end'"),
        ("SANDLOT_SNAPSHOTS_PER_SESSION", "0", "greater than or equal"),
    ],
)
def test_errors_name_the_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidRequest, match=message) as error:
        server_settings()
    assert error.value.message.startswith(f"{variable}: ")


def test_the_command_line_looks_where_the_worker_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert storage_dir() == server_settings().storage_dir == DEFAULT_STORAGE_DIR
    monkeypatch.setenv("SANDLOT_STORAGE_DIR", "~/storage")
    assert storage_dir() == server_settings().storage_dir == Path.home() / "storage"

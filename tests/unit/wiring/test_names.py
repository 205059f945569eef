"""The name of a worker that was given none: it marks the worker's containers, so it must be its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sandlot.config.reading import server_settings
from sandlot.config.settings import ServerSettings
from sandlot.wiring.worker import database_in, named_by_folder
from sandlot.worker.store.database import Store


def _name(folder: Path, **given: str) -> str:
    return named_by_folder(server_settings(data_dir=folder, **given)).worker_id


def test_each_folder_has_its_own_name(tmp_path: Path) -> None:
    first, second = _name(tmp_path / "a"), _name(tmp_path / "b")
    assert first != second
    assert _name(tmp_path / "a") == first
    pattern = next(rule.pattern for rule in ServerSettings.model_fields["worker_id"].metadata)
    assert re.match(pattern, first)


def test_a_given_name_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _name(tmp_path, worker_id="mine") == "mine"
    monkeypatch.setenv("SANDLOT_WORKER_ID", "from-the-environment")
    assert _name(tmp_path) == "from-the-environment"


async def test_a_folder_keeps_the_name_that_it_has(tmp_path: Path) -> None:
    """Its sandboxes carry it: an older version named all of them alike, and a folder may be moved."""
    store = Store(database_in(tmp_path), "local")
    await store.open()
    await store.close()
    assert _name(tmp_path) == "local"


def test_a_file_that_is_no_database_is_left_to_the_start(tmp_path: Path) -> None:
    database_in(tmp_path).write_text("not a database" * 100)
    assert _name(tmp_path).startswith("worker-")

"""``sandlot volumes``, and ``--volume`` of ``sandlot run``."""

from __future__ import annotations

import json

import pytest
import typer
from tests.unit.cli.conftest import Served

from sandlot.cli.volumes.volumes import parse_volumes
from sandlot.domain.volumes.volume import VolumeMode

pytestmark = pytest.mark.slow  # each case starts a process of its own


def test_volumes_are_made_used_and_deleted(served: Served) -> None:
    assert served.sandlot("volumes", "create", "data", "--size", "64m") == b"data\n"
    served.sandlot("run", "-q", "--volume", "data:rw", "echo hello >/volumes/data/a")
    assert served.sandlot("run", "-q", "--volume", "data", "cat /volumes/data/a") == b"hello\n"
    rows = [row.split("\t") for row in served.sandlot("volumes", "list").decode().splitlines()]
    assert rows[0] == ["VOLUME", "SIZE", "USED", "CREATED", "WRITTEN BY"]
    assert [rows[1][0], rows[1][4]] == ["data", "-"]
    (listed,) = json.loads(served.sandlot("volumes", "list", "--json"))
    assert (listed["name"], listed["quota_bytes"], listed["used_bytes"]) == ("data", 64 * 1024**2, 6)
    assert served.sandlot("volumes", "delete", "data") == b"data\n"
    assert json.loads(served.sandlot("volumes", "list", "--json")) == []


def test_options() -> None:
    given = ["data", "more:rw", "other:ro"]
    assert parse_volumes(given) == {"data": VolumeMode.RO, "more": VolumeMode.RW, "other": VolumeMode.RO}
    for wrong in (["data:w"], ["data", "data:rw"]):
        with pytest.raises(typer.BadParameter):
            parse_volumes(wrong)

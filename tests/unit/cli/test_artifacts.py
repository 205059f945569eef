"""``sandlot artifacts``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.cli.conftest import SECONDS, Served

pytestmark = pytest.mark.slow  # each case starts a process of its own


def test_files_are_kept_listed_downloaded_and_deleted(served: Served, tmp_path: Path) -> None:
    session = served.create(thread="of-artifacts")
    served.sandlot("exec", session, "mkdir out; echo 1 > out/a.txt; echo 2 > out/b.txt")
    lines = served.sandlot("artifacts", "keep", session, "out/*.txt").decode().splitlines()
    ids = [line.split("\t")[0] for line in lines]
    assert [line.split("\t")[1] for line in lines] == ["out/a.txt", "out/b.txt"]
    served.sandlot("sessions", "delete", session)

    listed = json.loads(served.sandlot("artifacts", "list", session, "--json"))
    assert [artifact["id"] for artifact in listed] == ids
    assert json.loads(served.sandlot("artifacts", "list", "--thread", "of-artifacts", "--json")) == listed
    rows = [row.split("\t") for row in served.sandlot("artifacts", "list").decode().splitlines()]
    assert rows[0] == ["ARTIFACT", "SESSION", "CREATED", "SIZE", "PATH"]
    assert [ids[0], session, "out/a.txt"] in [[row[0], row[1], row[4]] for row in rows]

    assert served.sandlot("artifacts", "download", ids[0], "-") == b"1\n"
    copy = served.sandlot("artifacts", "download", ids[1], str(tmp_path)).decode().strip()
    assert Path(copy) == tmp_path / "b.txt"
    assert Path(copy).read_text() == "2\n"
    named = tmp_path / "named"
    served.sandlot("artifacts", "download", ids[1], str(named))
    assert named.read_text() == "2\n"

    assert served.sandlot("artifacts", "delete", *ids).decode().split() == ids
    assert json.loads(served.sandlot("artifacts", "list", session, "--json")) == []


def test_what_was_not_kept_is_said(served: Served) -> None:
    session = served.create()
    process = served.start("artifacts", "keep", session, "none/*")
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, out) == (1, b"")
    assert err == b"sandlot: No file matches none/*.\n"
    kept = json.loads(served.sandlot("artifacts", "keep", session, "none", "--json", code=1))
    assert kept == {"kept": [], "unmatched": ["none"], "refused": []}
    process = served.start("artifacts", "download", "art_" + "0" * 32)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert b"does not exist" in err

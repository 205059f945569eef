"""``sandlot code`` and ``sandlot contexts``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.cli.conftest import Served

from sandlot.testing.fake.code.cells import CellReply

pytestmark = pytest.mark.slow  # each case starts a process of its own

PNG = b"\x89PNG\r\n\x1a\n..."


def test_code_keeps_its_variables_and_prints_its_value(served: Served) -> None:
    session = served.create()
    assert served.sandlot("code", session, "x = 40; print('set')") == b"set\n"
    assert served.sandlot("code", session, "-", stdin=b"print('got')\nx + 2") == b"got\n42\n"
    process = served.start("code", session, "1 / 0")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, b"")
    assert b"ZeroDivisionError: division by zero" in err
    found = json.loads(served.sandlot("code", session, "--json", "x", code=0))
    assert (found["ok"], found["text"], found["verdict"], found["error"]) == (True, "40", "ok", None)
    failed = json.loads(served.sandlot("code", session, "--json", "x = = 1", code=1))
    assert (failed["ok"], failed["error"]["name"]) == (False, "SyntaxError")
    served.sandlot("code", session, code=1)
    served.sandlot("code", session, "print(1)", "print(2)", code=1)


def test_pictures_are_saved_under_names_of_ours(served: Served, tmp_path: Path) -> None:
    reply = CellReply(
        displays=[{"image/png": PNG, "../evil": "x"}, {"image/svg+xml": "<svg/>"}], value="drawn"
    )
    served.service.scripts.cells.add("draw()", lambda call: reply)
    session = served.create()
    assert served.sandlot("code", session, "draw()", "--save", str(tmp_path / "new")) == b"drawn\n"
    saved = {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()}
    assert saved == {"cell-1-1.png": PNG, "cell-1-2.svg": b"<svg/>"}
    process = served.start("code", session, "draw()")
    _, err = process.communicate(timeout=60)
    assert b"--save DIR" in err


def test_contexts_are_made_listed_restarted_and_deleted(served: Served) -> None:
    session = served.create()
    assert served.sandlot("contexts", "create", session, "--id", "mine") == b"mine\n"
    served.sandlot("code", session, "--context", "mine", "x = 1")
    rows = [row.split("\t") for row in served.sandlot("contexts", "list", session).decode().splitlines()]
    assert rows == [
        ["CONTEXT", "LANGUAGE", "STATE", "RUNS", "RESTARTS", "FOLDER"],
        ["mine", "python", "idle", "1", "0", "/workspace"],
    ]
    served.sandlot("contexts", "interrupt", session, "mine")
    served.sandlot("contexts", "restart", session, "mine")
    (listed,) = json.loads(served.sandlot("contexts", "list", session, "--json"))
    assert (listed["id"], listed["restarts"], listed["executions"]) == ("mine", 1, 0)
    assert served.sandlot("contexts", "delete", session, "mine") == b"mine\n"
    assert json.loads(served.sandlot("contexts", "list", session, "--json")) == []
    served.sandlot("contexts", "restart", session, "mine", code=1)
    served.sandlot("contexts", "create", session, "--language", "pyton", code=1)

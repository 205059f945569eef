"""``sandlot recording`` and ``run --record`` against a real server, each command a process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.unit.cli.conftest import SECONDS, Served

from sandlot.testing.asciicast import parse_asciicast

pytestmark = pytest.mark.slow  # each command is a process of its own


def test_a_recorded_run_can_be_downloaded(served: Served, tmp_path: Path) -> None:
    process = served.start("run", "--record", "echo", "kept")
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, out) == (0, b"kept\n")
    found = re.search(r"To download it: sandlot recording (ses_[0-9a-f]{32})\n", err.decode())
    assert found is not None, err
    cast = served.sandlot("recording", found[1])
    assert parse_asciicast(cast).shown == "$ echo kept\r\nkept\r\n"
    file = tmp_path / "demo.cast"
    assert served.sandlot("recording", found[1], "-o", str(file)) == b""
    assert file.read_bytes() == cast


def test_without_a_recording_the_file_stays_as_it_is(served: Served, tmp_path: Path) -> None:
    session = served.create()
    file = tmp_path / "demo.cast"
    file.write_text("an older one")
    process = served.start("recording", session, "-o", str(file))
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert b"created without record=True" in err
    assert file.read_text() == "an older one"
    shown = served.sandlot("sessions", "show", session).decode().splitlines()
    assert ["recorded", "no"] in [line.split() for line in shown]

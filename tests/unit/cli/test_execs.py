"""``sandlot ps``, ``logs`` and ``kill``, ``files mkdir`` and ``sessions create``, each command a process."""

from __future__ import annotations

import json
import subprocess
import time

import pytest
from tests.unit.cli.conftest import SECONDS, Served

pytestmark = pytest.mark.slow  # each command is a process of its own


def _started(served: Served, session_id: str, command: str) -> subprocess.Popen[bytes]:
    process = served.start("exec", session_id, command)
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    return process


def _listed(served: Served, session_id: str) -> list[dict[str, object]]:
    listed: list[dict[str, object]] = json.loads(served.sandlot("ps", session_id, "--json"))
    return listed


def test_a_command_is_listed_read_and_killed(served: Served) -> None:
    session_id = served.create()
    process = _started(served, session_id, "echo begun; sleep 600")
    [running] = [one for one in _listed(served, session_id) if one["running"]]
    exec_id = str(running["exec_id"])
    table = served.sandlot("ps", session_id).decode().splitlines()
    assert table[0].split("\t") == ["COMMAND ID", "STATE", "STARTED", "TOOK", "OUTPUT", "COMMAND"]
    [row] = [line.split("\t") for line in table if line.startswith(exec_id)]
    assert (row[1], row[3], row[4], row[5]) == ("running", "-", "6 B", "echo begun; sleep 600")
    assert served.sandlot("logs", session_id, exec_id) == b"begun\n"
    assert served.sandlot("kill", session_id, exec_id).startswith(b"killed ")
    process.communicate(timeout=SECONDS)
    assert process.returncode > 128
    [ended] = [one for one in _listed(served, session_id) if one["exec_id"] == exec_id]
    assert not ended["running"]
    assert served.sandlot("kill", session_id, exec_id) == b"killed 0 processes\n"


def test_logs_follow_a_command_to_its_end(served: Served) -> None:
    session_id = served.create()
    command = "echo begun; sleep 1; echo over; echo aside >&2"
    process = _started(served, session_id, command)
    [exec_id] = [str(one["exec_id"]) for one in _listed(served, session_id) if one["command"] == command]
    following = served.start("logs", "--follow", session_id, exec_id)
    assert following.communicate(timeout=SECONDS) == (b"begun\nover\n", b"aside\n")
    assert following.returncode == 0
    process.communicate(timeout=SECONDS)


def test_an_unknown_command_is_said(served: Served) -> None:
    process = served.start("logs", served.create(), "exe_unknown")
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert b"exe_unknown" in err
    assert b"Traceback" not in err


def test_a_folder_is_created_with_those_above_it(served: Served) -> None:
    session_id = served.create()
    for _ in range(2):
        served.sandlot("files", "mkdir", f"{session_id}:a/b")
    listed = json.loads(served.sandlot("files", "ls", f"{session_id}:a", "--json"))
    assert [(entry["name"], entry["type"]) for entry in listed] == [("b", "directory")]


def test_a_session_is_created_and_stays(served: Served) -> None:
    thread = f"talk {time.time()}"
    words = ("sessions", "create", "--environment", "gvisor", "--thread", thread, "--record")
    session_id = served.sandlot(*words).decode().strip()
    shown = json.loads(served.sandlot("sessions", "show", session_id, "--json"))
    assert (shown["environment"], shown["record"], shown["state"]) == ("gvisor", True, "active")
    again = json.loads(served.sandlot(*words, "--json"))
    assert again["id"] == session_id


def test_a_session_begins_with_the_files_of_a_snapshot(served: Served) -> None:
    first = served.create()
    served.sandlot("exec", first, "echo kept > note.txt")
    snapshot = served.sandlot("snapshots", "create", first).decode().strip()
    second = served.sandlot("sessions", "create", "--snapshot", snapshot).decode().strip()
    assert served.sandlot("files", "cat", f"{second}:note.txt") == b"kept\n"

"""``sandlot history`` against a real server, each command a process."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess

import pytest
from tests.unit.cli.conftest import SANDLOT, SECONDS, Served

from sandlot.cli.history import BAD, GOOD, colour_of, describe
from sandlot.domain.history.events import Event
from sandlot.domain.ids import new_session_id

pytestmark = pytest.mark.slow  # each command is a process of its own


def test_a_session_that_has_ended(served: Served) -> None:
    session = served.create()
    served.sandlot("exec", session, "echo hi; exit 3", code=3)
    served.sandlot("sessions", "delete", session)
    rows = [line.split("\t") for line in served.sandlot("history", session).decode().splitlines()]
    assert [row[1] for row in rows] == [
        "session.created",
        "session.claimed",
        "exec.started",
        "exec.ended",
        "exec.started",
        "exec.ended",
        "session.ended",
    ]
    assert {row[2] for row in rows} == {session}
    assert rows[4][3].endswith("echo hi; exit 3")
    assert "nonzero, exit code 3" in rows[5][3]
    assert rows[6][3] == "reason deleted"


def test_a_thread_as_json_lines_with_filters(served: Served) -> None:
    session = served.create(thread="of-history")
    out = served.sandlot(
        "history", "--thread", "of-history", "--kind", "exec.ended", "--since", "1h", "--json"
    )
    [event] = [json.loads(line) for line in out.splitlines()]
    assert (event["kind"], event["session_id"]) == ("exec.ended", session)
    assert event["details"]["verdict"] == "ok"


def test_events_are_followed(served: Served) -> None:
    session = served.create()
    process = served.start("history", session, "--follow", "--json")
    assert process.stdout is not None
    seen = [json.loads(process.stdout.readline()) for _ in range(4)]
    served.sandlot("exec", session, "echo later")
    seen += [json.loads(process.stdout.readline()) for _ in range(2)]
    assert seen[4]["details"]["command"] == "echo later"
    process.terminate()
    process.communicate(timeout=SECONDS)


def test_on_a_terminal_it_has_colours(served: Served) -> None:
    session = served.create()
    master, slave = pty.openpty()
    variables = {**served.environment(), "TERM": "xterm-256color"}
    done = subprocess.run(
        [*SANDLOT, "history", session], stdout=slave, env=variables, check=True, timeout=SECONDS
    )
    os.close(slave)
    shown = os.read(master, 100_000).decode()
    os.close(master)
    assert done.returncode == 0
    assert re.search(r"\x1b\[32mexec\.ended", shown)
    assert "\x1b[2m" in shown


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["history", new_session_id()], 1, "does not exist"),
        (["history", "nonsense"], 1, "is not a session's id"),
        (["history", "--kind", "exec.end"], 1, "Did you mean 'exec.ended'?"),
        (["history", "x", "--thread", "y"], 2, "not both"),
        (["history", "--since", "0"], 2, "more than 0"),
    ],
)
def test_what_cannot_be(served: Served, arguments: list[str], code: int, says: str) -> None:
    process = served.start(*arguments)
    _, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, says in err.decode()) == (code, True), err


def test_an_event_cannot_control_the_terminal() -> None:
    event = Event("evt_1", 1.0, "exec.started", "t", exec_id="e", details={"command": "\x1b[31mred\n"})
    assert describe(event) == r"e \x1b[31mred\n"
    newer = Event("evt_1", 1.0, "policy.denied", "t", details={"rule": "no \x07", "tries": 3})
    assert describe(newer) == r"rule no \x07, tries 3"


def test_colours_tell_good_from_bad() -> None:
    def colour(kind: str, **details: str) -> str:
        return colour_of(Event("evt_1", 1.0, kind, "t", details=details))

    assert colour("exec.ended", verdict="ok") == GOOD
    for bad in (
        colour("exec.ended", verdict="oom"),
        colour("exec.ended", unseen="x"),
        colour("session.lost"),
    ):
        assert bad == BAD

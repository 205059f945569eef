"""``sandlot snapshots``, and ``fork``, ``promote`` and ``hibernate`` of ``sandlot sessions``."""

from __future__ import annotations

import json

import pytest
from tests.unit.cli.conftest import SECONDS, Served

pytestmark = pytest.mark.slow  # each case starts a process of its own


def failed(served: Served, *arguments: str, code: int = 1) -> str:
    process = served.start(*arguments)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == code, err
    return err.decode()


def test_snapshots_are_taken_compared_restored_and_deleted(served: Served) -> None:
    session = served.create()
    served.sandlot("exec", session, "echo 1 > changed; echo 1 > removed")
    first = served.sandlot("snapshots", "create", session, "--name", "first").decode().strip()
    served.sandlot("exec", session, "echo 2 > changed; rm removed; mkdir added; touch added/x")
    created = json.loads(
        served.sandlot("snapshots", "create", session, "--label", "a=b", "--label", "c=", "--json")
    )
    assert (created["session_id"], created["labels"]) == (session, {"a": "b", "c": ""})

    listed = json.loads(served.sandlot("snapshots", "list", session, "--json"))
    assert [snapshot["id"] for snapshot in listed] == [first, created["id"]]
    rows = [row.split("\t") for row in served.sandlot("snapshots", "list").decode().splitlines()]
    assert rows[0][:3] == ["SNAPSHOT", "SESSION", "NAME"]
    assert [row[:3] for row in rows if row[1] == session] == [
        [first, session, "first"],
        [created["id"], session, "-"],
    ]
    assert rows[-1][-1] == "a=b, c="

    shown = served.sandlot("snapshots", "diff", first).decode()
    assert shown == "+ added\n+ added/x\n~ changed\n- removed\n"
    assert served.sandlot("snapshots", "diff", first, "--to", created["id"]).decode() == shown
    difference = json.loads(served.sandlot("snapshots", "diff", first, "--json"))
    assert (difference["added"], difference["removed"]) == (["added", "added/x"], ["removed"])
    process = served.start("snapshots", "diff", created["id"])
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, out, err) == (0, b"", b"sandlot: No differences.\n")

    restored = served.sandlot("snapshots", "restore", session, first).decode()
    fields = dict(line.split(maxsplit=1) for line in restored.splitlines())
    assert (fields["session"], fields["generation"], fields["snapshot"]) == (session, "2", first)
    assert "shells" in fields["lost"]
    assert "environment variables" in fields["kept"]
    assert served.sandlot("exec", session, "cat changed removed") == b"1\n1\n"

    deleted = served.sandlot("snapshots", "delete", first, created["id"]).decode()
    assert deleted.split() == [first, created["id"]]
    assert json.loads(served.sandlot("snapshots", "list", session, "--json")) == []
    assert "does not exist" in failed(served, "snapshots", "restore", session, first)


def test_what_is_wrong_is_said(served: Served) -> None:
    session = served.create()
    assert "--label needs NAME=VALUE" in failed(
        served, "snapshots", "create", session, "--label", "x", code=2
    )
    assert "'nonsense' does not exist" in failed(served, "snapshots", "diff", "nonsense")
    assert "cannot be promoted to itself" in failed(served, "sessions", "promote", session, session)


def test_the_best_fork_is_promoted(served: Served) -> None:
    session = served.create()
    served.sandlot("exec", session, "echo parent > a")
    forks = served.sandlot("sessions", "fork", session, "--count", "2", "--env", "WAY=x").decode().split()
    assert len(forks) == 2
    for number, fork in enumerate(forks):
        assert served.sandlot("exec", fork, f"cat a; echo $WAY; echo {number} > a") == b"parent\nx\n"
    (thread,) = json.loads(served.sandlot("sessions", "fork", session, "--thread", "forked", "--json"))
    assert thread["thread"] == "forked"
    promoted = json.loads(served.sandlot("sessions", "promote", session, forks[1], "--json"))
    assert (promoted["session"]["id"], promoted["replaced"]) == (session, True)
    assert served.sandlot("exec", session, "cat a") == b"1\n"


def test_a_session_hibernates_and_wakes(served: Served) -> None:
    session = served.create()
    served.sandlot("exec", session, "echo kept > a")
    assert "hibernated" in served.sandlot("sessions", "hibernate", session).decode()
    assert served.sandlot("exec", session, "cat a") == b"kept\n"
    shown = json.loads(served.sandlot("sessions", "show", session, "--json"))
    assert (shown["state"], shown["generation"]) == ("active", 2)

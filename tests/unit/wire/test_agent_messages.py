"""Whatever JSON the agent sends, parsing gives a value or a ProtocolViolation."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandlot.domain.execution import Channel, Exited, Output, Started
from sandlot.wire import agent_messages as messages
from sandlot.wire.frames import ProtocolViolation

EXIT = {
    "event": "exit",
    "code": 0,
    "signal": 0,
    "reason": "exited",
    "error": "",
    "truncated": False,
    "output_bytes": 3,
    "duration_ms": 1.5,
    "user_ms": 1,
    "system_ms": 0.25,
    "peak_memory_bytes": 4096,
    "oom": False,
    "disk_full": False,
    "shell_ended": False,
}
ENTRY = {
    "path": "/workspace/a",
    "name": "a",
    "type": "file",
    "size": 3,
    "mode": 0o644,
    "mtime_ms": 1_700_000_000_000,
    "uid": 1000,
    "gid": 1000,
}
STARTED = {"event": "started", "pid": 7, "existing": False}
PARSERS = [
    (messages.parse_exited, EXIT),
    (messages.parse_entry, ENTRY),
    (messages.parse_started, STARTED),
    (messages.parse_problem, {"code": "busy", "message": "later"}),
    (messages.parse_match, {"path": "a", "line": 1, "text": "x"}),
    (messages.parse_shell_state, {"name": "main", "pid": 3, "cwd": "/", "busy": True}),
    (messages.parse_exec_state, {"exec_id": "e1", "state": "running", "shell": ""}),
    (messages.parse_archive, {"files": 1, "bytes": 2}),
    (messages.parse_changes, {"events": [{"type": "create", "path": "a"}]}),
    (
        messages.parse_info,
        {
            "agent": "0.1.0",
            "uptime_ms": 5,
            "execs_running": 0,
            "processes": 1,
            "memory": {"used_bytes": 1, "limit_bytes": 2, "oom_kills": 0},
        },
    ),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.parametrize(("parse", "good"), PARSERS, ids=lambda value: getattr(value, "__name__", ""))
def test_good_messages_are_read(parse: Any, good: dict) -> None:
    parse({**good, "of_a_newer_agent": [1]})


@pytest.mark.parametrize(("parse", "good"), PARSERS, ids=lambda value: getattr(value, "__name__", ""))
@settings(deadline=None)  # a loaded machine is not a failure
@given(data=st.data())
def test_spoiled_messages_raise_nothing_else(parse: Any, good: dict, data: st.DataObject) -> None:
    spoiled = dict(good)
    for name in data.draw(st.sets(st.sampled_from(sorted(good)), min_size=1)):
        if data.draw(st.booleans()):
            del spoiled[name]
        else:
            spoiled[name] = data.draw(JSON)
    with contextlib.suppress(ProtocolViolation):
        parse(spoiled)


@pytest.mark.parametrize(
    "spoiled",
    [
        {"code": 256},
        {"code": -1},
        {"code": True},
        {"code": 1.0},
        {"signal": 65},
        {"reason": "bored"},
        {"error": None},
        {"error": "\ud800"},
        {"truncated": 1},
        {"output_bytes": 2**63},
        {"duration_ms": -1},
        {"duration_ms": "1"},
    ],
    ids=repr,
)
def test_wrong_exit_is_refused(spoiled: dict) -> None:
    with pytest.raises(ProtocolViolation):
        messages.parse_exited({**EXIT, **spoiled})


def test_names_of_files_are_bytes() -> None:
    entry = messages.parse_entry({**ENTRY, "name": "caf\udce9", "path": "/caf\udce9"})
    assert os.fsencode(entry.name) == b"caf\xe9"
    with pytest.raises(ProtocolViolation):
        messages.parse_entry({**ENTRY, "name": "\ud800"})


def test_events_come_in_order() -> None:
    events = messages.ExecEvents(offset=10)
    assert events.message(STARTED) == Started(7, False)
    assert events.data(1, 10, b"abc") == Output(Channel.STDOUT, 10, b"abc")
    assert events.data(2, 20, b"x") == Output(Channel.STDERR, 20, b"x")  # a gap is allowed
    with pytest.raises(ProtocolViolation):
        events.data(1, 20, b"again")
    assert isinstance(events.message(EXIT), Exited)
    events.end()


def test_events_out_of_order_are_refused() -> None:
    for steps in (
        lambda events: events.data(1, 0, b""),
        lambda events: events.message(EXIT),
        lambda events: events.end(),
        lambda events: (events.message(STARTED), events.message(STARTED)),
        lambda events: (events.message(STARTED), events.data(0, 0, b"x")),
        lambda events: (events.message(STARTED), events.message(EXIT), events.data(1, 0, b"x")),
        lambda events: (events.message(STARTED), events.message(EXIT), events.message(EXIT)),
        lambda events: (events.message(STARTED), events.end()),
        lambda events: events.message({"event": ["started"]}),
    ):
        with pytest.raises(ProtocolViolation):
            steps(messages.ExecEvents())

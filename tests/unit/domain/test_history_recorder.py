"""What an event says: about whom, by whom, and nothing that is secret."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandlot.domain.callers.principal import OWNER, Principal, Scope
from sandlot.domain.errors import Forbidden, InvalidRequest
from sandlot.domain.execution import ExecRequest, Exited
from sandlot.domain.history.events import SERVER_TENANT, Event, EventKind, parse_kind
from sandlot.domain.history.query import EventQuery
from sandlot.domain.history.recorder import Recorder, called_by
from sandlot.domain.ids import new_session_id
from sandlot.domain.session import EndReason, Session
from sandlot.domain.session_states import end, lose, loss_report

CALLER = Principal("acme", key_id="key-of-acme", subject="ada")
SESSION = Session(new_session_id(), "base", 1.0, 1.0, tenant="acme", thread="t1", sandbox_id="sbx_1")


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def recorder(events: list[Event]) -> Recorder:
    return Recorder(events.append, "0123abcd", clock=lambda: 1_700_000_000.25)


def test_an_exec_is_recorded_with_its_caller_and_without_secrets(
    recorder: Recorder, events: list[Event]
) -> None:
    request = ExecRequest(command="curl -H $T hunter22 sessionsecret", exec_id="e1", env={"T": "hunter22"})
    started = recorder.exec_started(SESSION, request, {"S": "sessionsecret"}, CALLER)
    exited = Exited(3, 0, "exited", output_bytes=12, duration_ms=1.5, user_ms=2, peak_memory_bytes=4096)
    recorder.exec_ended(started, exited)
    assert [event.kind for event in events] == [EventKind.EXEC_STARTED, EventKind.EXEC_ENDED]
    assert events[0].details == {"generation": 1, "command": "curl -H $T *** ***"}
    assert events[1].details == {
        "verdict": "nonzero",
        "exit_code": 3,
        "duration_ms": 1.5,
        "output_bytes": 12,
        "user_ms": 2,
        "system_ms": 0,
        "peak_memory_bytes": 4096,
    }
    for event in events:
        assert (event.tenant, event.session_id, event.thread) == ("acme", SESSION.id, "t1")
        assert (event.exec_id, event.key_id, event.subject) == ("e1", "key-of-acme", "ada")
        assert event.at == 1_700_000_000.25
    assert events[0].id < events[1].id


def test_hashed_commands_can_be_compared_and_not_be_guessed(events: list[Event]) -> None:
    def digest(command: str, key: bytes) -> object:
        recorder = Recorder(events.append, "0123abcd", commands="hashed", digest_key=key)
        recorder.exec_started(SESSION, ExecRequest(command=command), {}, CALLER)
        assert set(events[-1].details) == {"generation", "command_digest"}
        return events[-1].details["command_digest"]

    assert digest("ls", b"k1") == digest("ls", b"k1")
    assert len({digest("ls", b"k1"), digest("ls -l", b"k1"), digest("ls", b"k2")}) == 3


def test_a_deletion_has_a_caller_and_an_expiry_has_none(recorder: Recorder, events: list[Event]) -> None:
    with called_by(CALLER):
        recorder.session_created(SESSION)
        recorder.session_lost(lose(SESSION, loss_report(SESSION, "it died", 2.0)))
        recorder.session_ended(end(SESSION, EndReason.DELETED, 2.0))
        recorder.session_ended(end(SESSION, EndReason.IDLE, 2.0))
    recorder.session_ended(end(SESSION, EndReason.DELETED, 2.0))
    assert [event.key_id for event in events] == ["key-of-acme", "", "key-of-acme", "", ""]
    assert [event.details.get("reason") for event in events] == [
        None,
        "it died",
        "deleted",
        "idle",
        "deleted",
    ]


def test_a_path_is_masked_like_a_command(recorder: Recorder, events: list[Event]) -> None:
    paths = {"path": "/workspace/hunter22"}
    recorder.file_changed(EventKind.FILE_WRITTEN, SESSION, {"P": "hunter22"}, CALLER, paths, {"bytes": 3})
    assert events[0].details == {"path": "/workspace/***", "bytes": 3}


def test_a_command_is_shown_only_to_those_who_may_run_one() -> None:
    event = Event("evt_1", 1.0, EventKind.EXEC_STARTED, "acme", details={"command": "ls", "generation": 1})
    reader = Principal("acme", frozenset({Scope.SESSIONS_READ}))
    assert event.visible_to(reader).details == {"generation": 1}
    assert event.visible_to(replace(reader, scopes=frozenset({Scope.EXEC}))) is event
    written = replace(event, details={"path": "a", "bytes": 1})
    assert written.visible_to(reader).details == {"bytes": 1}


def test_the_servers_own_events_are_for_operators() -> None:
    assert EventQuery(server=True).tenant_for(OWNER) == SERVER_TENANT
    assert EventQuery().tenant_for(CALLER) == "acme"
    with pytest.raises(Forbidden):
        EventQuery(server=True).tenant_for(Principal("acme", frozenset({Scope.ADMIN})))


def test_an_unknown_kind_gets_the_nearest_one() -> None:
    assert parse_kind("exec.ended") is EventKind.EXEC_ENDED
    with pytest.raises(InvalidRequest, match=r"Did you mean 'exec\.ended'\?"):
        parse_kind("exec.end")


@pytest.mark.parametrize(
    "wrong",
    [{"session_id": "x"}, {"thread": ""}, {"limit": 0}, {"limit": 1001}, {"wait_s": 61}, {"since": -1.0}],
)
def test_a_query_is_checked(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        EventQuery(**wrong)  # type: ignore[arg-type]

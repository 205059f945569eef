"""Parses the agent's JSON messages, checking every field.

The agent is not trusted: a missing field, a wrong type or a number out of range is a
``ProtocolViolation``. Unknown fields are ignored, so that a newer agent may send more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from sandlot.domain.execution import Channel, ExecEvent, Exited, Output, Started
from sandlot.domain.files import (
    ArchiveSummary,
    FileChange,
    FileChangeType,
    FileEntry,
    FileType,
    TextMatch,
)
from sandlot.domain.ids import is_exec_id, is_shell_name
from sandlot.wire.frames import ProtocolViolation

Object = dict[str, Any]
T = TypeVar("T")

_MAX_COUNT: Final = 2**63 - 1
_MAX_ID: Final = 2**32 - 1
_MAX_MS: Final = 1e15
_MAX_EXIT_CODE: Final = 255
_MAX_SHOWN_COMMAND: Final = 200  # characters of a command in a list
_MAX_MTIME_MS: Final = 2**62
_MAX_PROBLEM_TEXT: Final = 1000  # characters kept of a failure's message
_MODE_BITS: Final = 0o7777

_REASONS: Final = frozenset({"exited", "timeout", "killed", "output_limit", "oom", "start_failed"})
_FILE_TYPES: Final = {kind.value: kind for kind in FileType}
_CHANGE_TYPES: Final = {kind.value: kind for kind in FileChangeType if kind is not FileChangeType.OVERFLOW}
_CHANNELS: Final = {1: Channel.STDOUT, 2: Channel.STDERR}


class AgentInfo(NamedTuple):
    agent: str
    uptime_ms: int
    execs_running: int
    processes: int
    memory_used_bytes: int
    memory_limit_bytes: int
    oom_kills: int


class ExecState(NamedTuple):
    """``started_ms`` counts from the epoch. An older agent omits the fields after ``shell``."""

    exec_id: str
    running: bool
    shell: str | None
    command: str
    started_ms: int | None
    output_end: int | None
    exit_code: int | None
    duration_ms: float | None


class ShellState(NamedTuple):
    name: str
    pid: int
    cwd: str
    busy: bool


# fields


def integer(body: Object, name: str, low: int = 0, high: int = _MAX_COUNT) -> int:
    value = body.get(name)
    if type(value) is not int or not low <= value <= high:
        raise ProtocolViolation(f"{name} is not a whole number in range")
    return value


def optional_integer(body: Object, name: str, low: int = 0, high: int = _MAX_COUNT) -> int | None:
    return None if body.get(name) is None else integer(body, name, low, high)


def milliseconds(body: Object, name: str) -> float:
    value = body.get(name, 0.0)
    if type(value) not in (int, float) or not 0 <= value <= _MAX_MS or math.isnan(value):
        raise ProtocolViolation(f"{name} is not a duration")
    return float(value)


def flag(body: Object, name: str, default: bool | None = None) -> bool:
    value = body.get(name, default)
    if type(value) is not bool:
        raise ProtocolViolation(f"{name} is not true or false")
    return value


def text(body: Object, name: str, default: str | None = None) -> str:
    value = body.get(name, default)
    if type(value) is not str:
        raise ProtocolViolation(f"{name} is not text")
    if not value.isascii():
        # JSON can contain a lone surrogate, which would fail only later, where the text is written.
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ProtocolViolation(f"{name} is not Unicode text") from None
    return value


def optional_text(body: Object, name: str) -> str | None:
    return None if body.get(name) is None else text(body, name)


def file_name(body: Object, name: str) -> str:
    """A path or part of one. Bytes that are not UTF-8 arrive as surrogates, as in Python."""
    value = body.get(name)
    if type(value) is not str:
        raise ProtocolViolation(f"{name} is not text")
    if not value.isascii():
        try:
            value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise ProtocolViolation(f"{name} cannot be a file's name") from None
    return value


def optional_file_name(body: Object, name: str) -> str | None:
    return None if body.get(name) is None else file_name(body, name)


def nested(body: Object, name: str) -> Object:
    value = body.get(name)
    if type(value) is not dict:
        raise ProtocolViolation(f"{name} is not an object")
    return value


def list_of(body: Object, name: str, parse: Callable[[Object], T]) -> list[T]:
    values = body.get(name)
    if type(values) is not list:
        raise ProtocolViolation(f"{name} is not a list")
    parsed = []
    for value in values:
        if type(value) is not dict:
            raise ProtocolViolation(f"{name} contains something other than objects")
        parsed.append(parse(value))
    return parsed


# failures and core responses


def parse_problem(body: Object) -> tuple[str, str]:
    """Code and message of a RESET. People read the message, so its length is limited here."""
    return text(body, "code"), text(body, "message", "")[:_MAX_PROBLEM_TEXT]


def parse_info(body: Object) -> AgentInfo:
    memory = nested(body, "memory")
    return AgentInfo(
        agent=text(body, "agent")[:64],
        uptime_ms=integer(body, "uptime_ms"),
        execs_running=integer(body, "execs_running"),
        processes=integer(body, "processes"),
        memory_used_bytes=integer(memory, "used_bytes"),
        memory_limit_bytes=integer(memory, "limit_bytes"),
        oom_kills=integer(memory, "oom_kills"),
    )


def parse_signalled(body: Object) -> int:
    return integer(body, "signalled")


def parse_exec_state(body: Object) -> ExecState:
    exec_id, state, shell = text(body, "exec_id"), text(body, "state"), optional_text(body, "shell") or None
    if not is_exec_id(exec_id) or not (shell is None or is_shell_name(shell)):
        raise ProtocolViolation("the id or shell of an exec is not a valid name")
    return ExecState(
        exec_id,
        state == "running",
        shell,
        text(body, "command", "")[:_MAX_SHOWN_COMMAND],
        optional_integer(body, "started_ms", high=int(_MAX_MS)),
        optional_integer(body, "output_end"),
        optional_integer(body, "exit_code", high=_MAX_EXIT_CODE),
        None if body.get("exit_code") is None else milliseconds(body, "duration_ms"),
    )


def parse_shell_state(body: Object) -> ShellState:
    name = text(body, "name")
    if not is_shell_name(name):
        raise ProtocolViolation("the name of a shell is not a valid name")
    return ShellState(name, integer(body, "pid", 0, _MAX_ID), text(body, "cwd"), flag(body, "busy"))


# execs


def parse_started(body: Object) -> Started:
    return Started(pid=integer(body, "pid", 0, _MAX_ID), existing=flag(body, "existing", False))


def parse_exited(body: Object) -> Exited:
    reason = text(body, "reason")
    if reason not in _REASONS:
        raise ProtocolViolation("the reason of an exit is unknown")
    return Exited(
        code=integer(body, "code", 0, _MAX_EXIT_CODE),
        signal=integer(body, "signal", 0, 64),
        reason=reason,
        error=text(body, "error", ""),
        truncated=flag(body, "truncated", False),
        output_bytes=integer(body, "output_bytes"),
        stderr_bytes=optional_integer(body, "stderr_bytes") or 0,
        gap_from=optional_integer(body, "gap_from") or 0,
        gap_to=optional_integer(body, "gap_to") or 0,
        duration_ms=milliseconds(body, "duration_ms"),
        user_ms=milliseconds(body, "user_ms"),
        system_ms=milliseconds(body, "system_ms"),
        peak_memory_bytes=integer(body, "peak_memory_bytes"),
        oom=flag(body, "oom", False),
        disk_full=flag(body, "disk_full", False),
        shell_ended=flag(body, "shell_ended", False),
        shell_restarted=flag(body, "shell_restarted", False),
    )


class ExecEvents:
    """Checks one reader's event order: started, output at growing offsets, exit, then no more."""

    __slots__ = ("exited", "next_offset", "started")

    def __init__(self, offset: int = 0) -> None:
        self.next_offset = offset
        self.started = False
        self.exited = False

    def message(self, body: Object) -> ExecEvent:
        event = body.get("event")
        if event == "started" and not self.started:
            self.started = True
            return parse_started(body)
        if event == "exit" and self.started and not self.exited:
            self.exited = True
            return parse_exited(body)
        raise ProtocolViolation("the event of an exec is unknown or out of order")

    def data(self, channel: int, offset: int, data: bytes) -> Output:
        name = _CHANNELS.get(channel)
        if name is None or not self.started or self.exited:
            raise ProtocolViolation("output on the wrong channel or at the wrong time")
        if offset < self.next_offset or offset + len(data) > _MAX_COUNT:
            raise ProtocolViolation("the offset of output went backwards")
        self.next_offset = offset + len(data)
        return Output(name, offset, data)

    def end(self) -> None:
        if not self.exited:
            raise ProtocolViolation("the events of an exec ended without an exit")


# files


def parse_entry(body: Object) -> FileEntry:
    kind = _FILE_TYPES.get(text(body, "type"))
    if kind is None:
        raise ProtocolViolation("the type of an entry is unknown")
    return FileEntry(
        path=file_name(body, "path"),
        name=file_name(body, "name"),
        type=kind,
        size=integer(body, "size"),
        mode=integer(body, "mode", 0, _MAX_ID) & _MODE_BITS,
        mtime_ms=integer(body, "mtime_ms", -_MAX_MTIME_MS, _MAX_MTIME_MS),
        uid=integer(body, "uid", 0, _MAX_ID),
        gid=integer(body, "gid", 0, _MAX_ID),
        target=optional_file_name(body, "target"),
    )


def parse_entry_answer(body: Object) -> FileEntry:
    return parse_entry(nested(body, "entry"))


def parse_entries(body: Object) -> list[FileEntry]:
    return list_of(body, "entries", parse_entry)


def parse_match(body: Object) -> TextMatch:
    return TextMatch(file_name(body, "path"), integer(body, "line"), text(body, "text"))


def parse_matches(body: Object) -> list[TextMatch]:
    return list_of(body, "matches", parse_match)


def parse_removed(body: Object) -> int:
    return integer(body, "removed")


def parse_archive(body: Object) -> ArchiveSummary:
    return ArchiveSummary(files=integer(body, "files"), bytes=integer(body, "bytes"))


def _parse_change(body: Object) -> FileChange:
    kind = _CHANGE_TYPES.get(text(body, "type"))
    if kind is None:
        raise ProtocolViolation("the type of a change is unknown")
    return FileChange(kind, file_name(body, "path"))


def parse_changes(body: Object) -> list[FileChange]:
    if "overflow" in body:
        return [FileChange(FileChangeType.OVERFLOW, "")] if flag(body, "overflow") else []
    return list_of(body, "events", _parse_change)

"""The history of a run, one event per line, with times by the clients' clock.

Every operation has an ``invoke`` and one end. The end is ``ok``, or ``fail`` for an error that says
nothing was executed, or ``unknown`` for an error that says something may have been. Events name a
sandbox by session and generation. The history also holds the state found at the end, so that the
checker needs nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

ENDS = ("ok", "fail", "unknown")


@dataclass(frozen=True, slots=True)
class Listed:
    """A session in a list. ``tag`` names the create that made it."""

    id: str
    generation: int
    state: str
    thread: str | None = None
    sandbox: str | None = None
    tag: str | None = None


# Where a sandbox logs its commands. Files in /workspace would outlive it.
LOG = "/tmp/log"


@dataclass(frozen=True, slots=True)
class Ending:
    """The state found after everything has settled.

    ``listed`` has the sessions by coordinator, ``directory`` the sandboxes and ``workspaces`` the workspaces
    by session. The engine's containers and volumes are by worker. A volume is named after its workspace's
    first sandbox.
    """

    listed: Mapping[str, tuple[Listed, ...]]
    directory: Mapping[str, str | None]
    workspaces: Mapping[str, str]
    containers: Mapping[str, Mapping[str, str]]
    volumes: Mapping[str, tuple[str, ...]]
    warm: Mapping[str, int]
    # Containers and volumes beyond the warm ones, after all sessions were deleted.
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the history.

    ``do`` is create, run, read, delete, list, get or recreate. ``replaces``: the call asks for a
    new sandbox in place of a lost one. ``loss`` is the generation reported as lost. ``exec`` is the
    command's id. ``lines`` is the log inside the sandbox.
    """

    event: str
    at: float
    op: int | None = None
    client: int | None = None
    do: str | None = None
    via: str | None = None
    thread: str | None = None
    session: str | None = None
    exec: str | None = None
    tag: str | None = None
    replaces: bool = False
    deadline_s: float | None = None
    generation: int | None = None
    state: str | None = None
    loss: int | None = None
    value: str | None = None
    lines: tuple[str, ...] | None = None
    sessions: tuple[Listed, ...] | None = None
    code: str | None = None
    retryable: bool | None = None
    may_have_executed: bool | None = None
    message: str | None = None
    # Of faults and fleet members:
    kind: str | None = None
    target: str | None = None
    seconds: float | None = None
    rss: int | None = None
    fds: int | None = None
    ending: Ending | None = None

    def to_json(self) -> str:
        return json.dumps({name: value for name, value in asdict(self).items() if value is not None})


def parse(line: str) -> Event:
    fields: dict[str, Any] = json.loads(line)
    if "lines" in fields:
        fields["lines"] = tuple(fields["lines"])
    if "sessions" in fields:
        fields["sessions"] = tuple(Listed(**row) for row in fields["sessions"])
    if "ending" in fields:
        ending = fields["ending"]
        fields["ending"] = Ending(
            listed={name: tuple(Listed(**row) for row in rows) for name, rows in ending["listed"].items()},
            directory=ending["directory"],
            workspaces=ending["workspaces"],
            containers=ending["containers"],
            volumes={name: tuple(names) for name, names in ending["volumes"].items()},
            warm=ending["warm"],
            left=tuple(ending["left"]),
        )
    return Event(**fields)


class Recorder:
    """Appends events to a file as they happen, so that a run that dies leaves its history."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.numbers = 0

    def next_number(self) -> int:
        self.numbers += 1
        return self.numbers

    def add(self, event: Event) -> None:
        self._file.write(event.to_json() + "\n")


def read(path: Path) -> Iterator[Event]:
    with path.open() as file:
        for line in file:
            yield parse(line)


@dataclass
class Operation:
    """An invocation with its end, or None if the end never came."""

    call: Event
    end: Event | None = None

    @property
    def begin_at(self) -> float:
        return self.call.at

    @property
    def end_at(self) -> float:
        return float("inf") if self.end is None else self.end.at

    @property
    def ok(self) -> bool:
        return self.end is not None and self.end.event == "ok"

    @property
    def did_nothing(self) -> bool:
        return self.end is not None and self.end.event == "fail"

    @property
    def session(self) -> str | None:
        return self.call.session or (self.end.session if self.end else None)

    def __str__(self) -> str:
        call, end = self.call, self.end
        request = " ".join(x for x in (call.do, call.thread, call.session, call.exec, call.via) if x)
        outcome = "nothing"
        if end is not None:
            details = (end.session, end.generation and f"g{end.generation}", end.state, end.code, end.value)
            outcome = " ".join(str(x) for x in (end.event, *details) if x)
        return f"#{call.op} {call.at:.2f}-{self.end_at:.2f} {request} → {outcome}"


@dataclass
class History:
    """All events in order, with each operation's invocation and end joined."""

    operations: list[Operation] = field(default_factory=list)
    others: list[Event] = field(default_factory=list)

    @classmethod
    def of(cls, events: Iterable[Event]) -> History:
        history = cls()
        by_number: dict[int, Operation] = {}
        for event in events:
            if event.event == "invoke":
                assert event.op is not None
                by_number[event.op] = Operation(event)
                history.operations.append(by_number[event.op])
            elif event.event in ENDS:
                assert event.op is not None
                assert by_number[event.op].end is None, f"operation {event.op} ends twice"
                by_number[event.op].end = event
            else:
                history.others.append(event)
        return history

    def called(self, *names: str) -> list[Operation]:
        return [operation for operation in self.operations if operation.call.do in names]

    def of_kind(self, name: str) -> list[Event]:
        return [event for event in self.others if event.event == name]

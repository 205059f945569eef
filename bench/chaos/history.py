"""What happened, one event a line: every operation has an ``invoke`` and one end, with the clients' own clock.

An end is ``ok``; ``fail``: an error that says that nothing was executed; or ``unknown``: one that says that it may
have been. Sandboxes are named by session and generation. What was found at the end stands in the history too, so
that a history alone can be checked.
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
    """A session in a list: ``tag`` names the create that made it."""

    id: str
    generation: int
    state: str
    thread: str | None = None
    sandbox: str | None = None
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """What was found when all had settled. ``listed``: by coordinator; ``directory``: sandboxes by session; the
    engine's by worker.
    """

    listed: Mapping[str, tuple[Listed, ...]]
    directory: Mapping[str, str | None]
    containers: Mapping[str, Mapping[str, str]]
    volumes: Mapping[str, tuple[str, ...]]
    warm: Mapping[str, int]
    # Once all sessions were deleted: containers and volumes beyond the warm ones.
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """``do``: create, run, read, delete, list, recreate. ``replaces``: it asks for a new sandbox in place of a lost
    one. ``loss``: the generation that is reported as lost. ``exec``: the command's id. ``lines``: the log inside.
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
    # of faults and members
    kind: str | None = None
    target: str | None = None
    seconds: float | None = None
    rss: int | None = None
    fds: int | None = None
    ending: Ending | None = None

    def line(self) -> str:
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
            containers=ending["containers"],
            volumes={name: tuple(names) for name, names in ending["volumes"].items()},
            warm=ending["warm"],
            left=tuple(ending["left"]),
        )
    return Event(**fields)


class Recorder:
    """Appends events to a file as they happen: a run that dies leaves its history."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.numbers = 0

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def add(self, event: Event) -> None:
        self._file.write(event.line() + "\n")


def read(path: Path) -> Iterator[Event]:
    with path.open() as file:
        for line in file:
            yield parse(line)


@dataclass
class Operation:
    """An invocation with its end; None if it never came."""

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
        asked = " ".join(x for x in (call.do, call.thread, call.session, call.exec, call.via) if x)
        came = "nothing"
        if end is not None:
            seen = (end.session, end.generation and f"g{end.generation}", end.state, end.code, end.value)
            came = " ".join(str(x) for x in (end.event, *seen) if x)
        return f"#{call.op} {call.at:.2f}-{self.end_at:.2f} {asked} → {came}"


@dataclass
class Story:
    """The events in order, with operations put together."""

    operations: list[Operation] = field(default_factory=list)
    others: list[Event] = field(default_factory=list)

    @classmethod
    def of(cls, events: Iterable[Event]) -> Story:
        story = cls()
        by_number: dict[int, Operation] = {}
        for event in events:
            if event.event == "invoke":
                assert event.op is not None
                by_number[event.op] = Operation(event)
                story.operations.append(by_number[event.op])
            elif event.event in ENDS:
                assert event.op is not None
                assert by_number[event.op].end is None, f"operation {event.op} ends twice"
                by_number[event.op].end = event
            else:
                story.others.append(event)
        return story

    def called(self, *names: str) -> list[Operation]:
        return [operation for operation in self.operations if operation.call.do in names]

    def of_kind(self, name: str) -> list[Event]:
        return [event for event in self.others if event.event == name]

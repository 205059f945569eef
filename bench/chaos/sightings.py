"""What the clients observed of each sandbox: when it answered, and what its log contained."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from bench.chaos.history import Event, History, Operation


class Violation(NamedTuple):
    rule: str
    text: str


class Sandbox(NamedTuple):
    session: str
    generation: int

    def __str__(self) -> str:
        return f"{self.session} g{self.generation}"


@dataclass(frozen=True, slots=True)
class Sighting:
    """This sandbox was the session's at some moment between ``begin`` and ``end``."""

    sandbox: Sandbox
    state: str
    begin: float
    end: float
    what: str


@dataclass(frozen=True, slots=True)
class Reading:
    """The lines of the log inside a sandbox, at some moment between ``begin`` and ``end``."""

    sandbox: Sandbox
    lines: tuple[str, ...]
    begin: float
    end: float
    what: str


class Observations:
    """Everything that a history says about sandboxes and sessions."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.sightings: list[Sighting] = []
        self.readings: list[Reading] = []
        self.losses: set[Sandbox] = set()
        self.threads: dict[str, str] = {}
        self._deletes: dict[str, list[Operation]] = defaultdict(list)
        for operation in history.operations:
            self._add(operation)
        for event in history.of_kind("inside"):
            # The engine read this log after everything had settled.
            assert event.session is not None
            assert event.generation is not None
            sandbox = Sandbox(event.session, event.generation)
            self._read(sandbox, event, event.at, "the log at the end")

    def _add(self, operation: Operation) -> None:
        call, end = operation.call, operation.end
        if call.do == "delete" and call.session is not None:
            self._deletes[call.session].append(operation)
        if end is None:
            return
        session = end.session or call.session
        if end.loss is not None and session is not None:
            self.losses.add(Sandbox(session, end.loss))
        if end.event != "ok" or session is None or end.generation is None:
            return
        if call.thread is not None:
            self.threads.setdefault(session, call.thread)
        sandbox = Sandbox(session, end.generation)
        self.sightings.append(
            Sighting(sandbox, end.state or "active", call.at, end.at, str(operation)),
        )
        if call.do == "read":
            self._read(sandbox, end, call.at, str(operation))

    def _read(self, sandbox: Sandbox, event: Event, begin: float, what: str) -> None:
        self.readings.append(Reading(sandbox, event.lines or (), begin, event.at, what))

    def deleted_before(self, session: str, moment: float) -> bool:
        """Whether the session may be deleted by then: a delete began and may have worked."""
        return any(
            delete.begin_at < moment and not delete.did_nothing for delete in self._deletes.get(session, ())
        )

    def deleted_at(self, session: str) -> float | None:
        """When a delete of the session was first acknowledged."""
        return min((delete.end_at for delete in self._deletes.get(session, ()) if delete.ok), default=None)

    def alive(self) -> dict[Sandbox, list[Sighting]]:
        found: dict[Sandbox, list[Sighting]] = defaultdict(list)
        for sighting in self.sightings:
            if sighting.state == "active":
                found[sighting.sandbox].append(sighting)
        return found

"""Histories written by hand, for the checker to read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.chaos.checker import check
from bench.chaos.history import Ending, Event, Listed, Recorder, read

from sandlot.domain.ids import first_workspace_of

BOX_1, BOX_2 = "sbx_1", "sbx_2"


class Writer:
    """An operation a second, one after the other, unless a time is given."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.now = 0.0
        self.number = 0

    def op(
        self,
        do: str,
        *,
        asked: dict[str, Any],
        said: dict[str, Any] | None = None,
        event: str = "ok",
        begin: float | None = None,
        seconds: float = 1.0,
    ) -> None:
        self.number += 1
        start = self.now if begin is None else begin
        self.now = max(self.now, start + seconds + 1)
        self.events.append(
            Event("invoke", start, op=self.number, client=1, do=do, via="c1", deadline_s=60, **asked)
        )
        self.events.append(Event(event, start + seconds, op=self.number, **(said or {})))

    def create(
        self,
        session: str,
        generation: int = 1,
        *,
        thread: str | None = "t",
        state: str = "active",
        **other: Any,
    ) -> None:
        asked = {"thread": thread, "tag": other.pop("tag", None), "replaces": other.pop("replaces", False)}
        loss = other.pop("loss", None)
        said = {"session": session, "generation": generation, "state": state, "loss": loss}
        self.op("create", asked=asked, said=said, **other)

    def run(
        self,
        session: str,
        exec_id: str,
        place: int,
        generation: int = 1,
        value: str | None = None,
        **other: Any,
    ) -> None:
        said = {"generation": generation, "value": value or f"{place}:{exec_id}"}
        self.op("run", asked={"session": session, "exec": exec_id}, said=said, **other)

    def read(self, session: str, *lines: str, generation: int = 1, **other: Any) -> None:
        self.op("read", asked={"session": session}, said={"generation": generation, "lines": lines}, **other)

    def delete(self, session: str, **other: Any) -> None:
        self.op("delete", asked={"session": session}, **other)

    def error(
        self, do: str, code: str, *, asked: dict[str, Any], may_have_executed: bool = False, **other: Any
    ) -> None:
        said = {
            "code": code,
            "retryable": True,
            "may_have_executed": may_have_executed,
            "message": "because",
            **other,
        }
        self.op(do, asked=asked, said=said, event="unknown" if may_have_executed else "fail")

    def inside(self, session: str, *lines: str, generation: int = 1) -> None:
        self.events.append(Event("inside", self.now, session=session, generation=generation, lines=lines))

    def end(self, *rows: Listed, **changes: Any) -> None:
        boxes = [row.sandbox for row in rows if row.sandbox is not None]
        ending = Ending(
            listed={"c1": rows, "c2": rows},
            directory={row.id: row.sandbox for row in rows},
            workspaces={row.id: first_workspace_of(row.sandbox) for row in rows if row.sandbox is not None},
            containers={"w1": dict.fromkeys([*boxes, "sbx_warm"], "running")},
            volumes={"w1": (*boxes, "sbx_warm")},
            warm={"w1": 1},
        )
        self.events.append(Event("end", self.now, ending=replace(ending, **changes)))

    def violations(self, tmp_path: Path) -> list[str]:
        """Through the file, as in a run."""
        path = tmp_path / "history.jsonl"
        with path.open("w") as file:
            recorder = Recorder(file)
            for event in self.events:
                recorder.add(event)
        return [violation.rule for violation in check(read(path))]


ONE = Listed("ses_1", 1, "active", "t", BOX_1)


def begun() -> Writer:
    writer = Writer()
    writer.create("ses_1", tag="c-1")
    writer.run("ses_1", "x-1", 1)
    return writer


def finished(writer: Writer, *lines: str) -> Writer:
    writer.inside("ses_1", "x-1", *lines)
    writer.end(ONE)
    return writer

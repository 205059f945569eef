"""The pure parts of the bridge to kernels: its events, its code for variables, and what comes too late."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any

import pytest

from sandlot.domain.code.contexts import Cell, Language
from sandlot.domain.code.events import CellData, CellText, EventLines
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.execution import ExecRequest
from sandlot.worker.contexts.bridge import events, languages
from sandlot.worker.contexts.bridge.late import Fence
from sandlot.worker.contexts.cells import exec_of

PROGRAM = "/agent"
HOSTILE = {"PLAIN": "1", "QUOTED": "a 'b' \"c\" $(false) `false` \\", "LINES": "x\ny", "EMPTY": ""}


def read(produced: list[dict[str, Any]]) -> list[Any]:
    """The events as a client reads them."""
    return EventLines().feed(b"".join(map(events.line_of, produced)))


def test_long_text_becomes_many_lines_and_none_is_lost() -> None:
    text = "é" * (3 * events.PIECE_CHARACTERS + 1)
    found = read(list(events.events_of("stream", {"name": "stderr", "text": text})))
    assert [event.channel for event in found] == ["stderr"] * 4
    assert "".join(event.text for event in found) == text


def test_half_a_surrogate_pair_is_carried() -> None:
    assert events.line_of({"type": "stdout", "text": "\ud83d"}).isascii()


def test_the_largest_form_of_a_value_is_left_out_if_the_line_would_be_too_long() -> None:
    big = "x" * (events.MAX_LINE_BYTES + 1)
    content = {"data": {"text/plain": "small", "text/html": big}, "metadata": {}}
    value, note = read(list(events.events_of("execute_result", content)))
    assert isinstance(value, CellData)
    assert (value.data, value.main) == ({"text/plain": "small"}, True)
    assert isinstance(note, CellText)
    assert "text/html" in note.text


@pytest.mark.parametrize(
    ("kind", "content"), [("status", {}), ("comm_open", {"data": 7}), ("execute_input", {"code": "x"})]
)
def test_other_messages_are_no_events(kind: str, content: Mapping[str, Any]) -> None:
    assert list(events.events_of(kind, content)) == []


def printed(language: str, code: str, env: Mapping[str, str]) -> dict[str, str]:
    """The variables that a program has after it ran this code."""
    show = {
        "python": "import os, json; print(json.dumps(dict(os.environ)))",
        "bash": 'python3 -c "import os, json; print(json.dumps(dict(os.environ)))"',
    }[language]
    program = {"python": "python3", "bash": "bash"}[language]
    ran = subprocess.run(
        [program, "-c", f"{code}\n{show}"],
        env={"PATH": "/usr/bin:/bin", **env},
        capture_output=True,
        check=True,
    )
    found: dict[str, str] = json.loads(ran.stdout)
    return found


@pytest.mark.parametrize("language", ["python", "bash"])
def test_a_kernel_adopts_variables(language: str) -> None:
    code = languages.adopting(language, HOSTILE, ["GONE", "NEVER_THERE"], None)
    found = printed(language, code, {"GONE": "x", "KEPT": "y", "PLAIN": "old"})
    assert {name: found.get(name) for name in HOSTILE} == HOSTILE
    assert ("GONE" in found, found["KEPT"]) == (False, "y")


@pytest.mark.parametrize("language", ["python", "bash"])
def test_a_cells_variables_are_restored(language: str) -> None:
    before = {"PLAIN": "old", "EMPTY": "", "OTHER": "z"}
    entered = languages.entering(language, HOSTILE)
    assert {n: printed(language, entered, before)[n] for n in HOSTILE} == HOSTILE
    found = printed(language, entered + "\n" + languages.leaving(language, HOSTILE), before)
    assert {name: found.get(name) for name in (*HOSTILE, "OTHER")} == {
        "PLAIN": "old", "QUOTED": None, "LINES": None, "EMPTY": "", "OTHER": "z"
    }  # fmt: skip


async def test_what_comes_too_late_is_the_cells_and_the_mark_is_nobodys() -> None:
    got: list[tuple[str, Mapping[str, Any]]] = []

    async def sink(kind: str, content: Mapping[str, Any]) -> None:
        got.append((kind, content))

    fence = Fence(sink)
    mark = fence.code.rpartition('log("')[2].partition('"')[0]
    await fence.take("stream", {"name": "stdout", "text": "late\n"})
    await fence.take("display_data", {"data": {"text/plain": mark}})
    await fence.take("execute_input", {"execution_count": 7})
    await fence.take("execute_result", {"data": {"text/plain": "2"}})
    assert not fence.reached.is_set()
    await fence.take("stream", {"name": "stdout", "text": f"last\n{mark}\n"})
    assert fence.reached.is_set()
    assert [(kind, content.get("text")) for kind, content in got] == [
        ("stream", "late\n"), ("execute_result", None), ("stream", "last\n")
    ]  # fmt: skip


def test_the_same_cell_is_the_same_exec_and_its_code_is_cut_between_characters() -> None:
    code = "é" * 100_000
    request = ExecRequest(cell=Cell(code, "mine"), env={"A": "1"})
    asked, stdin = exec_of(request, Language.PYTHON, PROGRAM)
    assert (asked, stdin) == exec_of(request, Language.PYTHON, PROGRAM)
    assert asked.argv is not None
    assert (asked.cell, stdin, asked.argv[:4]) == (None, None, (PROGRAM, "cell", "mine", "python"))
    assert ("".join(asked.argv[4:]), len(asked.argv) > 5) == (code, True)
    for other in ("x" * 300_000, "nul \0"):
        asked, stdin = exec_of(ExecRequest(cell=Cell(other)), Language.PYTHON, PROGRAM)
        assert (asked.stdin, stdin) == (True, other.encode())
    with pytest.raises(InvalidRequest, match="comma"):
        exec_of(ExecRequest(cell=Cell("1"), env={"A,B": "1"}), Language.PYTHON, PROGRAM)

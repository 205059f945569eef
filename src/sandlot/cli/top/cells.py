"""Text for the view. Names and output come from sandboxes: control characters are shown, never sent on."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from sandlot.cli.terminal.display import ago, duration, size, time_left
from sandlot.domain.text.printable import escape_unprintable

if TYPE_CHECKING:
    from textual.widgets import DataTable

    from sandlot.domain.capacity.pool import PoolStats
    from sandlot.domain.computer import ExecSummary
    from sandlot.domain.session import Session
    from sandlot.wire.fleet_bodies import WorkerBody

Row = Sequence[str]

SESSIONS: Final = ("SESSION", "STATE", "ENVIRONMENT", "THREAD", "GEN", "USED", "ENDS IN")
POOLS: Final = ("POOL", "READY", "TARGET", "SUGGESTED", "HITS", "MISSES", "CLAIM", "WHY")
WORKERS: Final = ("WORKER", "STATE", "SESSIONS", "WARM", "FREE", "MEMORY", "CORES", "PROBLEMS")
COMMANDS: Final = ("COMMAND", "STATE", "STARTED", "TOOK", "OUTPUT")
_STATES: Final = {
    "active": "green", "alive": "green", "running": "green", "hibernated": "blue", "ended": "dim",
    "lost": "red", "gone": "red", "unresponsive": "yellow", "late": "yellow", "draining": "yellow",
}  # fmt: skip
# Colours and cursor moves of a terminal, which would stand between the words of an output.
_SEQUENCES: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)")
_LINES: Final = 500


def session_row(session: Session) -> Row:
    return (
        session.id,
        session.state,
        session.environment,
        session.thread or "-",
        str(session.generation),
        ago(session.last_active_at),
        time_left(session.expires_at),
    )


def pool_rows(pools: Mapping[str, PoolStats]) -> dict[str, Row]:
    """Pools that hold, want or served something."""
    return {
        name: (
            name,
            f"{pool.ready}" + (f" +{pool.making}" if pool.making else ""),
            str(pool.target),
            str(pool.suggested_size),
            str(pool.hits),
            ", ".join(f"{count} {why}" for why, count in pool.misses.items()) or "0",
            f"{pool.claim_ms_p50:.1f} ms",
            pool.last_failure if pool.failures else pool.target_reason,
        )
        for name, pool in sorted(pools.items())
        if pool.ready or pool.target or pool.hits or pool.misses
    }


def worker_row(worker: WorkerBody) -> Row:
    machine = worker.machine
    return (
        worker.id,
        "draining" if worker.draining and worker.state == "alive" else worker.state,
        str(worker.sessions),
        str(worker.warm),
        str(worker.free),
        "-"
        if machine is None
        else f"{size(machine.given.memory_bytes)} of {size(machine.total.memory_bytes)}",
        "-" if machine is None else f"{machine.given.cpus:g} of {machine.total.cpus:g}",
        " ".join(worker.problems) or "-",
    )


def command_row(one: ExecSummary) -> Row:
    if one.running:
        state, took_s = "running", max(0.0, time.time() - (one.started_at or time.time()))
    else:
        state, took_s = f"exit {one.exit_code}", (one.duration_ms or 0.0) / 1000
    return (
        one.command or one.exec_id,
        state,
        "-" if one.started_at is None else ago(one.started_at),
        f"{took_s * 1000:.0f} ms" if took_s < 1 else duration(took_s),
        "-" if one.output_end is None else size(one.output_end),
    )


def cell(text: str) -> Text:
    return Text(escape_unprintable(text), style=_STATES.get(text, ""), no_wrap=True)


def output_text(output: str) -> Text:
    """The last lines of an output."""
    lines = _SEQUENCES.sub("", output).replace("\r\n", "\n").expandtabs().split("\n")
    return Text("\n".join(escape_unprintable(line) for line in lines[-_LINES:]))


def fill(table: DataTable[Any], rows: Mapping[str, Row]) -> None:
    """Show these rows, by key. The cursor stays on the row that it was on, wherever that one is now."""
    shown = [row.key.value for row in table.ordered_rows]
    columns = [column.key for column in table.ordered_columns]
    if shown == list(rows):
        for key, row in rows.items():
            for column, text in zip(columns, row, strict=True):
                if table.get_cell(key, column) != (new := cell(text)):
                    table.update_cell(key, column, new, update_width=True)
        return
    chosen = shown[table.cursor_row] if table.cursor_row < len(shown) else None
    table.clear()
    for key, row in rows.items():
        table.add_row(*map(cell, row), key=key)
    if chosen is not None and chosen in rows:
        table.move_cursor(row=list(rows).index(chosen), animate=False)


def chosen_key(table: DataTable[Any]) -> str | None:
    rows = table.ordered_rows
    return rows[table.cursor_row].key.value if table.cursor_row < len(rows) else None

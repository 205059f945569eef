"""How things are shown: a table on a terminal, tab-separated lines in a pipe, JSON where it is asked for.

Names and texts out of a sandbox are somebody else's: control characters in them are written out, or they
could steer the terminal that shows them.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sandlot.domain.printable import harmless

if TYPE_CHECKING:
    from rich.progress import Progress

# Until somebody wonders whether anything happens.
SLOW_S = 1.5
# What a shell says of a program whose reader went away.
BROKEN_PIPE = 128 + signal.SIGPIPE


def print_json(value: Any) -> None:
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(value)).decode()
    print(re.sub(r"[^\n -~]", lambda found: _harmless_in_json(found[0]), text))


def _harmless_in_json(char: str) -> str:
    # JSON itself escapes the controls below the space only.
    return char if char.isprintable() else json.dumps(char)[1:-1]


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, whole: str | None = None) -> None:
    """``whole``: the column that is never folded, so that one can copy from it."""
    rows = [[harmless(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in (columns, *rows):
            print("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column == whole)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    fields = [(harmless(name), harmless(value)) for name, value in fields]
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        print(f"{name:<{width}}  {value}")


def write_bytes(descriptor: int, data: bytes) -> None:
    """As they are, and at once."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def note(message: str) -> None:
    """A word to the person, which is no part of the output."""
    # A terminal in raw mode goes back to the line's beginning only where it is told to.
    end = "\r\n" if sys.stderr.isatty() else "\n"
    print(f"sandlot: {harmless(message)}", file=sys.stderr, end=end)


@contextmanager
def said_if_slow(message: str) -> Iterator[None]:
    """A word to the person who waits, once the wait is one; within an event loop."""
    telling = asyncio.get_running_loop().call_later(SLOW_S, note, message)
    try:
        yield
    finally:
        telling.cancel()


def size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value == int(value) else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "never"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m" + (f"{whole % 60}s" if whole % 60 else "")
    return f"{whole // 3600}h" + (f"{whole % 3600 // 60}m" if whole % 3600 // 60 else "")


def moment(at: float | None) -> str:
    return "never" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def left_until(at: float | None) -> str:
    return duration(None if at is None else max(0.0, at - time.time()))


@contextmanager
def transfer(description: str, total: int | None) -> Iterator[Progress]:
    """A progress bar on stderr for task 0; without a terminal it shows nothing."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as progress:
        progress.add_task(harmless(description), total=total)
        yield progress

"""Prints results: a table on a terminal, tab-separated lines in a pipe, JSON on request.

Names and texts from a sandbox are not trusted: control characters in them are escaped, because they
could control the terminal that shows them.
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

from sandlot.domain.text.printable import escape_unprintable

if TYPE_CHECKING:
    from rich.progress import Progress

# After this time a waiting user wants to know what is happening.
SLOW_S = 1.0
# A shell's exit code for a program whose reader closed the pipe.
BROKEN_PIPE = 128 + signal.SIGPIPE


def print_json(value: Any) -> None:
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(value)).decode()
    print(re.sub(r"[^\n -~]", lambda found: _harmless_in_json(found[0]), text))


def print_json_line(value: Any) -> None:
    """Print a value as JSON on one line, at once."""
    import msgspec

    text = msgspec.json.encode(value).decode()
    print(re.sub(r"[^ -~]", lambda found: _harmless_in_json(found[0]), text), flush=True)


def _harmless_in_json(char: str) -> str:
    # JSON itself escapes only the control characters below the space.
    return char if char.isprintable() else json.dumps(char)[1:-1]


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, unwrapped: str | None = None
) -> None:
    """Print a table.

    ``unwrapped``: a column that is never wrapped, so that its values can be copied.
    """
    rows = [[escape_unprintable(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in (columns, *rows):
            print("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column == unwrapped)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    fields = [(escape_unprintable(name), escape_unprintable(value)) for name, value in fields]
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        print(f"{name:<{width}}  {value}")


def write_bytes(descriptor: int, data: bytes) -> None:
    """Write bytes unchanged and without buffering."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def note(message: str) -> None:
    """Print a message to the user on stderr; it is not part of the output."""
    # A terminal in raw mode needs an explicit carriage return.
    end = "\r\n" if sys.stderr.isatty() else "\n"
    print(f"sandlot: {escape_unprintable(message)}", file=sys.stderr, end=end)


@contextmanager
def note_if_slow(message: str, *, quiet: bool = False) -> Iterator[None]:
    """Print a message if the block takes long, unless ``quiet``. Needs a running event loop."""
    if quiet:
        yield
        return
    timer = asyncio.get_running_loop().call_later(SLOW_S, note, message)
    try:
        yield
    finally:
        timer.cancel()


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
    total = round(seconds)
    if total < 60:
        return f"{total}s"
    if total < 3600:
        return f"{total // 60}m" + (f"{total % 60}s" if total % 60 else "")
    return f"{total // 3600}h" + (f"{total % 3600 // 60}m" if total % 3600 // 60 else "")


def ago(at: float) -> str:
    """Return how long ago a time was, in words."""
    seconds = max(0, int(time.time() - at))
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1)):
        if count := seconds // length:
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"


def timestamp(at: float | None) -> str:
    return "never" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def time_left(at: float | None) -> str:
    return duration(None if at is None else max(0.0, at - time.time()))


@contextmanager
def transfer(description: str, total: int | None) -> Iterator[Progress]:
    """Show a progress bar on stderr, with one task; without a terminal it shows nothing."""
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
        progress.add_task(escape_unprintable(description), total=total)
        yield progress

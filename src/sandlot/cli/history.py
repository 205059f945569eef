"""``history``: shows what happened in a session, in a conversation, or all of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final

import typer

from sandlot.cli.chosen import parse_time
from sandlot.cli.connection import with_client

if TYPE_CHECKING:
    from sandlot.client.async_client import AsyncClient
    from sandlot.domain.history.events import Event
    from sandlot.domain.history.query import EventPage

GOOD, BAD, PLAIN = "green", "red", ""
_BAD_KINDS: Final = frozenset({"session.lost", "request.refused", "history.dropped"})


def register(app: typer.Typer) -> None:
    app.command()(history)


def history(
    ctx: typer.Context,
    session: Annotated[
        str | None, typer.Argument(metavar="[SESSION]", help="The session's id. It may have ended.")
    ] = None,
    thread: Annotated[
        str | None,
        typer.Option("--thread", metavar="THREAD", help="Show the sessions of this thread instead."),
    ] = None,
    kinds: Annotated[
        list[str] | None,
        typer.Option(
            "--kind", metavar="KIND", help="Show only this kind, such as exec.ended. Can be repeated."
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Show only the last 90 (seconds), 30m, 12h or 7d.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on, and show each event as it happens.")
    ] = False,
    server: Annotated[
        bool, typer.Option("--server", help="Show events that belong to no tenant. For operators.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Show what happened.

    Without SESSION and --thread, show everything that the server has recorded for your tenant. If
    workers of a fleet do not answer, the command says so and exits with 1.
    """
    from sandlot.cli.terminal import display
    from sandlot.client.events import FOLLOW_WAIT_S, event_query

    if session is not None and thread is not None:
        raise typer.BadParameter("Pass SESSION or --thread, not both.")
    query = event_query(
        session=session,
        thread=thread,
        kinds=kinds or (),
        since=None if since is None else time.time() - _seconds(since),
        server=server,
    )

    async def work(client: AsyncClient) -> tuple[str, ...]:
        from dataclasses import replace

        printer = _Printer(as_json=as_json, with_session=session is None)
        asked, shown = query, 0
        missing: tuple[str, ...] = ()
        while True:
            page: EventPage = await client.service.list_events(asked)
            for event in page.events:
                printer.show(event)
            shown += len(page.events)
            if page.missing != missing:
                _tell_missing(page.missing)
            missing = page.missing
            asked = replace(asked, after=page.next)
            if page.more:
                continue
            if not follow:
                if not shown and session is not None:
                    await client.get(session)  # raises if it does not exist
                return missing
            asked = replace(asked, wait_s=FOLLOW_WAIT_S)

    try:
        missing = with_client(ctx, work)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:
        raise typer.Exit(display.BROKEN_PIPE) from None
    if missing:
        raise typer.Exit(1)


def _seconds(text: str) -> float:
    seconds = parse_time(text)
    if not seconds:
        raise typer.BadParameter("The time must be more than 0. Use 90 (seconds), 30m, 12h or 7d.")
    return seconds


def _tell_missing(missing: tuple[str, ...]) -> None:
    from sandlot.cli.terminal import display

    if missing:
        display.note(f"Workers that do not answer, so that their events are missing: {', '.join(missing)}.")
    else:
        display.note("All workers answer again.")


class _Printer:
    """One line for each event, at once: columns with colour on a terminal, tabs in a pipe."""

    def __init__(self, *, as_json: bool, with_session: bool) -> None:
        self._as_json = as_json
        self._with_session = with_session
        self._terminal = sys.stdout.isatty()

    def show(self, event: Event) -> None:
        from sandlot.cli.terminal import display
        from sandlot.domain.text.printable import escape_unprintable

        if self._as_json:
            display.print_json_line(event)
            return
        at, kind, text = display.timestamp(event.at), escape_unprintable(event.kind), describe(event)
        by = escape_unprintable(event.subject or event.key_id)
        session = escape_unprintable(event.session_id or "-")
        if not self._terminal:
            print(f"{at}\t{kind}\t{session}\t{text}\t{by}", flush=True)
            return
        from rich.console import Console
        from rich.text import Text

        console = Console(highlight=False)
        line = Text.assemble((at, "dim"), "  ", (f"{kind:<16}", colour_of(event)), "  ")
        if self._with_session:
            line.append(f"{session:<36}  ", "cyan")
        line.append(text)
        if by:
            line.append(f"  by {by}", "dim")
        console.print(line, soft_wrap=True)


def colour_of(event: Event) -> str:
    if event.kind in _BAD_KINDS or "unseen" in event.details:
        return BAD
    verdict = event.details.get("verdict")
    return PLAIN if verdict is None else GOOD if verdict == "ok" else BAD


def describe(event: Event) -> str:
    """The event's details in words, on one line. Kinds of a newer server show theirs as they are."""
    from sandlot.domain.text.printable import escape_unprintable

    words = _DESCRIPTIONS.get(event.kind, _names_and_values)(event.details)
    return escape_unprintable(f"{event.exec_id} {words}" if event.exec_id else words)


def _ended(details: Mapping[str, object]) -> str:
    from sandlot.cli.terminal import display

    if "unseen" in details:
        return f"end not seen: {details['unseen']}"
    cpu_ms = _number(details, "user_ms") + _number(details, "system_ms")
    return (
        f"{details.get('verdict')}, exit code {details.get('exit_code')}, "
        f"{_number(details, 'duration_ms'):.0f} ms, {display.size(int(_number(details, 'output_bytes')))} "
        f"of output, {cpu_ms:.0f} ms of CPU, {display.size(int(_number(details, 'peak_memory_bytes')))} "
        "of memory"
    )


def _started(details: Mapping[str, object]) -> str:
    command = details.get("command")
    if command is None:
        digest = details.get("command_digest")
        command = "(command not shown)" if digest is None else f"digest {str(digest)[:16]}…"
    return f"[{details['shell']}] {command}" if "shell" in details else str(command)


def _names_and_values(details: Mapping[str, object]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in details.items())


def _number(details: Mapping[str, object], name: str) -> float:
    value = details.get(name)
    return value if isinstance(value, int | float) else 0.0


_DESCRIPTIONS: Final = {"exec.started": _started, "exec.ended": _ended}

"""The live view of a server or a fleet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, ClassVar, Final

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import DataTable, Footer, Input, Sparkline, Static

from sandlot.cli.top import cells
from sandlot.cli.top.activity import COMMANDS, CREATES, LOSSES, Activity, matches
from sandlot.cli.top.deleting import ConfirmDelete
from sandlot.cli.top.session_screen import SessionScreen
from sandlot.cli.top.source import MAX_SESSIONS, Overview, Source
from sandlot.domain.errors import SandlotError
from sandlot.domain.session import Session

EVERY_S: Final = 2.0
# Asking must not be most of what a large server does.
REST: Final = 5.0
# Rows of the table; a filter finds the others.
MAX_ROWS: Final = 500
HISTORY_AGAIN_S: Final = 5.0

Table = DataTable[Any]


class TopApp(App[None]):
    ENABLE_COMMAND_PALETTE = False
    TITLE = "sandlot top"
    CSS = """
    #head, #found, #problems { height: auto; padding: 0 1; }
    #problems { color: $warning; }
    #activity { height: 3; padding: 0 1; }
    #activity Vertical { width: 1fr; padding: 0 2 0 0; }
    #activity Sparkline { height: 1; }
    #pools, #workers { height: auto; max-height: 8; margin: 1 0 0 0; }
    #filter { border: none; height: 1; margin: 1 0 0 0; padding: 0 1; }
    #sessions { height: 1fr; min-height: 5; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter"),
        Binding("d", "delete", "Delete"),
        Binding("escape", "leave_filter", "All sessions", show=False),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, source: Source, server: str) -> None:
        super().__init__()
        self._source = source
        self._server = server
        self._activity = Activity()
        self._sessions: list[Session] = []
        self._troubles: dict[str, str] = {}
        self._texts: dict[str, Static] = {}
        self._tables: dict[str, Table] = {}
        self._lines: dict[str, Sparkline] = {}

    def compose(self) -> ComposeResult:
        # Kept, not looked up: an answer may arrive while the view closes and has let go of them.
        for name in ("head", "problems", "creates-text", "commands-text", "found"):
            self._texts[name] = Static(id=name, markup=False)
        for name in ("pools", "workers"):
            self._tables[name] = DataTable(id=name, cursor_type="none")
        self._tables["sessions"] = DataTable(id="sessions", cursor_type="row")
        self._lines = {name: Sparkline(id=name) for name in ("creates", "commands")}
        self._filter = Input(
            placeholder="Enter opens a session. / filters by id, thread, state, environment or metadata",
            id="filter",
        )
        yield self._texts["head"]
        yield self._texts["problems"]
        with Horizontal(id="activity"):
            for name, line in self._lines.items():
                with Vertical():
                    yield self._texts[f"{name}-text"]
                    yield line
        yield self._tables["pools"]
        yield self._tables["workers"]
        yield self._filter
        yield self._tables["sessions"]
        yield self._texts["found"]
        yield Footer()

    def on_mount(self) -> None:
        for name, columns in (
            ("pools", cells.POOLS), ("workers", cells.WORKERS), ("sessions", cells.SESSIONS),
        ):  # fmt: skip
            table = self._tables[name]
            table.add_columns(*columns)
            table.display = name == "sessions"
        self._tables["pools"].can_focus = self._tables["workers"].can_focus = False
        self._tables["sessions"].focus()
        self.set_interval(1.0, self._draw_activity)
        for name, work in (("server", self._ask_overview), ("sessions", self._ask_sessions)):
            self.run_worker(self._again_and_again(name, work))
        self.run_worker(self._follow_history())

    # --- asking -------------------------------------------------------------------------------

    async def _again_and_again(self, name: str, ask: Callable[[], Awaitable[None]]) -> None:
        while True:
            began = time.monotonic()
            try:
                await ask()
                self._tell(name, "")
            except SandlotError as error:
                self._tell(name, error.message)
            await asyncio.sleep(max(EVERY_S, REST * (time.monotonic() - began)))

    async def _ask_overview(self) -> None:
        self._draw_overview(await self._source.overview())

    async def _ask_sessions(self) -> None:
        self._sessions = await self._source.sessions()
        self._draw_sessions()

    async def _follow_history(self) -> None:
        while True:
            # From the beginning each time: events are counted once.
            self._activity = Activity()
            try:
                async with aclosing(self._source.events()) as events:
                    async for event in events:
                        self._activity.add(event)
                        self._tell("history", "")
            except SandlotError as error:
                self._tell("history", error.message)
            await asyncio.sleep(HISTORY_AGAIN_S)

    # --- drawing ------------------------------------------------------------------------------

    def _text(self, name: str, text: str) -> None:
        self._texts[name].update(cells.cell(text))

    def _tell(self, name: str, problem: str) -> None:
        if self._troubles.get(name, "") != problem:
            self._troubles[name] = problem
            self._text("problems", " · ".join(text for text in self._troubles.values() if text))

    def _draw_overview(self, overview: Overview) -> None:
        health = overview.health
        state = "not ready" if not health.ready else "ready" if health.creates else "takes no new sessions"
        workers = "" if health.workers is None else f" · workers: {health.workers}"
        self._text(
            "head",
            f"{self._server} · {health.worker_id} {health.version} · {state}{workers} · "
            f"sessions: {health.active_sessions} · calls under way: {health.calls_under_way}",
        )
        self._tell("health", " · ".join(health.problems))
        for name, rows in (
            ("pools", cells.pool_rows(health.pools)),
            ("workers", {worker.id: cells.worker_row(worker) for worker in overview.workers}),
        ):
            table = self._tables[name]
            table.display = bool(rows)
            cells.fill(table, rows)

    def _draw_activity(self) -> None:
        now = time.time()
        for name, kind in (("creates", CREATES), ("commands", COMMANDS)):
            counts = self._activity.per_minute(kind, now)
            lost = sum(self._activity.per_minute(LOSSES, now)) if kind == CREATES else 0
            self._text(
                f"{name}-text",
                f"{name.capitalize()}: {counts[-1]} this minute, {sum(counts)} in {len(counts)} minutes"
                + (f", {lost} lost" if lost else ""),
            )
            self._lines[name].data = counts

    def _draw_sessions(self) -> None:
        text = self._filter.value
        found = [session for session in self._sessions if matches(session, text)]
        cells.fill(
            self._tables["sessions"], {session.id: cells.session_row(session) for session in found[:MAX_ROWS]}
        )
        parts = [f"Sessions: {len(found)}" + (f" of {len(self._sessions)}" if text else "")]
        if len(found) > MAX_ROWS:
            parts.append(f"the newest {MAX_ROWS} are shown")
        if len(self._sessions) >= MAX_SESSIONS:
            parts.append(f"the server has more than the {len(self._sessions)} that are searched")
        self._text("found", " · ".join(parts))

    # --- keys ---------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The keys of the list do nothing while another screen lies above it."""
        return len(self.screen_stack) == 1 or action not in {"filter", "delete", "leave_filter"}

    def on_input_changed(self) -> None:
        self._draw_sessions()

    def on_input_submitted(self) -> None:
        self._tables["sessions"].focus()

    def action_filter(self) -> None:
        self._filter.focus()

    def action_leave_filter(self) -> None:
        self._filter.value = ""
        self._tables["sessions"].focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if event.data_table.id == "sessions" and event.row_key.value is not None:
            self.push_screen(SessionScreen(self._source, event.row_key.value))

    async def action_delete(self) -> None:
        if (session_id := cells.chosen_key(self._tables["sessions"])) is not None:
            self.push_screen(ConfirmDelete(self._source, session_id), self._deleted)

    async def _deleted(self, deleted: bool | None) -> None:
        if deleted:
            await self._ask_sessions()

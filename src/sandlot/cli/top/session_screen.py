"""One session: its commands, and what the chosen one has written."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Static

from sandlot.cli.top import cells
from sandlot.cli.top.deleting import ConfirmDelete
from sandlot.cli.top.source import Source
from sandlot.domain.computer import ExecSummary
from sandlot.domain.errors import SandlotError
from sandlot.domain.text.printable import escape_unprintable

EVERY_S: Final = 1.0


class SessionScreen(Screen[None]):
    CSS = """
    SessionScreen #about, SessionScreen #problem { height: auto; padding: 0 1; }
    SessionScreen #problem { color: $warning; }
    SessionScreen #commands { height: 1fr; min-height: 5; margin: 1 0; }
    SessionScreen #log { height: 2fr; border-top: solid $primary; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("k", "kill", "Kill the command"),
        Binding("d", "delete", "Delete the session"),
        Binding("escape", "app.pop_screen", "Back"),
        Binding("q", "app.quit", "Quit"),
    ]

    def __init__(self, source: Source, session_id: str) -> None:
        super().__init__()
        self._source = source
        self._session_id = session_id
        self._execs: dict[str, ExecSummary] = {}
        self._drawn: tuple[str, int | None, bool] | None = None

    def compose(self) -> ComposeResult:
        # Kept, not looked up: an answer may arrive while the screen closes and has let go of them.
        self._about = Static(id="about", markup=False)
        self._problem = Static(id="problem", markup=False)
        self._table: DataTable[Any] = DataTable(id="commands", cursor_type="row")
        self._log = VerticalScroll(id="log")
        self._output = Static(id="output", markup=False)
        yield self._about
        yield self._problem
        yield self._table
        with self._log:
            yield self._output
        yield Footer()

    def on_mount(self) -> None:
        self._table.add_columns(*cells.COMMANDS)
        self._table.focus()
        self.run_worker(self._again_and_again())

    def _tell(self, problem: str) -> None:
        self._problem.update(cells.cell(problem))

    async def _again_and_again(self) -> None:
        while True:
            try:
                await self._draw()
                self._tell("")
            except SandlotError as error:
                self._tell(error.message)
            await asyncio.sleep(EVERY_S)

    async def _draw(self) -> None:
        session = await self._source.session(self._session_id)
        about = [session.id, session.state, session.environment, f"generation {session.generation}"]
        if session.thread:
            about.append(session.thread)
        if session.loss is not None:
            about.append(session.loss.reason)
        self._about.update(cells.cell(" · ".join(about)))
        self._execs = {one.exec_id: one for one in await self._source.execs(self._session_id)}
        cells.fill(self._table, {id: cells.command_row(one) for id, one in self._execs.items()})
        await self._draw_output()

    async def _draw_output(self) -> None:
        one = self._execs.get(cells.chosen_key(self._table) or "")
        if one is None:
            self._output.update("No command has run in this sandbox.")
            return
        state = (one.exec_id, one.output_end, one.running)
        if state == self._drawn:
            return
        text = await self._source.output(self._session_id, one)
        self._output.update(cells.output_text(text))
        self._log.scroll_end(animate=False)
        self._drawn = state

    async def on_data_table_row_highlighted(self) -> None:
        try:
            await self._draw_output()
        except SandlotError as error:
            self._tell(error.message)

    async def action_kill(self) -> None:
        exec_id = cells.chosen_key(self._table)
        if exec_id is None or not self._execs[exec_id].running:
            self.notify("This command does not run any more.", markup=False)
            return
        try:
            await self._source.kill(self._session_id, exec_id)
            await self._draw()
        except SandlotError as error:
            self.notify(escape_unprintable(error.message), severity="error", markup=False)

    def action_delete(self) -> None:
        self.app.push_screen(ConfirmDelete(self._source, self._session_id), self._deleted)

    def _deleted(self, deleted: bool | None) -> None:
        if deleted:
            self.dismiss()

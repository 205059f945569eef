"""Asks before a session is deleted."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from sandlot.cli.top import cells
from sandlot.cli.top.source import Source
from sandlot.domain.errors import SandlotError


class ConfirmDelete(ModalScreen[bool]):
    """Deletes the session if the user says so. Its result: whether it did."""

    CSS = """
    ConfirmDelete { align: center middle; }
    ConfirmDelete Vertical { width: 70; max-width: 95%; height: auto; padding: 1 2; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "delete", "Delete it"),
        Binding("n,escape", "dismiss(False)", "Keep it"),
    ]

    def __init__(self, source: Source, session_id: str) -> None:
        super().__init__()
        self._source = source
        self._session_id = session_id

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(
                f"Delete {self._session_id}?\n\nIts sandbox and its files are deleted. Its snapshots stay.",
                id="question",
                markup=False,
            )
        yield Footer()

    async def action_delete(self) -> None:
        try:
            await self._source.delete(self._session_id)
        except SandlotError as error:
            self.query_one("#question", Static).update(cells.output_text(error.message))
            return
        self.dismiss(True)

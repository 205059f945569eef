"""What a cell gave: its values and displays, its text and its error."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sandlot.domain.code.events import (
    BINARY_TYPES,
    CellCleared,
    CellCount,
    CellData,
    CellError,
    CellEvent,
    CellText,
    EventLines,
)
from sandlot.domain.kept_output import Omitted
from sandlot.domain.text.terminal_codes import strip_terminal_codes

# How many values and displays of one cell are kept. More are a loop that displays, and nobody reads them.
MAX_VALUES: Final = 1000
_CHANNELS: Final = ("stdout", "stderr")


@dataclass(frozen=True, slots=True)
class Value:
    """The value of a cell, or what it displayed, in every form that the kernel made of it.

    A notebook shows it as its own cells' values.

    data: by media type: text, base64 text for pictures, JSON values for JSON types.
    main: whether it is the value of the cell's last expression.
    display_id: what a later update names it by, if the cell said so.
    metadata: what the kernel says about the forms, such as a picture's size.
    """

    data: Mapping[str, Any]
    main: bool = False
    display_id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str | None:
        """As plain text."""
        return self._text("text/plain")

    @property
    def html(self) -> str | None:
        """As HTML. A sandbox wrote it: show it only where its scripts cannot run."""
        return self._text("text/html")

    @property
    def markdown(self) -> str | None:
        """As Markdown."""
        return self._text("text/markdown")

    @property
    def latex(self) -> str | None:
        """As LaTeX."""
        return self._text("text/latex")

    @property
    def svg(self) -> str | None:
        """As an SVG picture. A sandbox wrote it: show it only where its scripts cannot run."""
        return self._text("image/svg+xml")

    @property
    def png(self) -> bytes | None:
        """As a PNG picture."""
        return self.binary("image/png")

    @property
    def jpeg(self) -> bytes | None:
        """As a JPEG picture."""
        return self.binary("image/jpeg")

    @property
    def json(self) -> Any:
        """As a JSON value."""
        return self.data.get("application/json")

    @property
    def vega(self) -> Any:
        """As a chart of Vega or Vega-Lite."""
        return next(
            (each for kind, each in self.data.items() if kind.startswith("application/vnd.vega")), None
        )

    @property
    def plotly(self) -> Any:
        """As a chart of Plotly."""
        return self.data.get("application/vnd.plotly.v1+json")

    @property
    def pictures(self) -> dict[str, bytes]:
        """Its forms that are pictures in pixels, by media type."""
        kinds = (kind for kind in self.data if kind in BINARY_TYPES and kind.startswith("image/"))
        return {kind: picture for kind in kinds if (picture := self.binary(kind)) is not None}

    def binary(self, kind: str) -> bytes | None:
        """Return the form with this media type, which is base64, as bytes; None if there is none."""
        text = self._text(kind)
        try:
            # Kernels break it into lines.
            return None if text is None else base64.b64decode("".join(text.split()), validate=True)
        except (binascii.Error, ValueError):
            return None

    def _text(self, kind: str) -> str | None:
        value = self.data.get(kind)
        return value if isinstance(value, str) else None

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> tuple[dict[str, Any], Any]:
        return dict(self.data), dict(self.metadata)


@dataclass(frozen=True, slots=True)
class CodeError:
    """The error that ended a cell.

    name: its class, such as ``ValueError``; ``KernelDied`` or ``KernelRestarted`` if the kernel ended.
    value: its message.
    traceback: where it was raised, as plain text.
    """

    name: str
    value: str
    traceback: str

    def __str__(self) -> str:
        return f"{self.name}: {self.value}" if self.value else self.name


@dataclass(frozen=True, slots=True)
class CellOutcome:
    """What a cell gave. ``incomplete``: it displayed more than is kept."""

    values: tuple[Value, ...]
    stdout: str
    stderr: str
    error: CodeError | None
    execution_count: int | None
    incomplete: bool


class CellFold:
    """Folds a cell's events into its outcome."""

    def __init__(self) -> None:
        self._values: list[Value] = []
        self._texts: dict[str, list[str]] = {channel: [] for channel in _CHANNELS}
        self._error: CodeError | None = None
        self._count: int | None = None
        self._incomplete = self._clears_next = False

    def add(self, event: CellEvent) -> Value | None:
        """Add an event. Returns the value or display that it is."""
        match event:
            case CellText(channel, text):
                self._texts[channel].append(text)
            case CellData():
                return self._add_value(event)
            case CellError():
                self._error = code_error(event)
            case CellCount(count):
                self._count = count
            case CellCleared(wait):
                self._clears_next = wait
                if not wait:
                    self._values.clear()
        return None

    def _add_value(self, event: CellData) -> Value:
        value = Value(event.data, event.main, event.display_id, event.metadata)
        if event.update and event.display_id is not None:
            shown = [at for at, each in enumerate(self._values) if each.display_id == event.display_id]
            for at in shown:
                self._values[at] = value
            if shown:
                return value
        if self._clears_next:
            self._clears_next = False
            self._values.clear()
        if len(self._values) < MAX_VALUES:
            self._values.append(value)
        else:
            self._incomplete = True
        return value

    def outcome(self) -> CellOutcome:
        stdout, stderr = ("".join(self._texts[channel]) for channel in _CHANNELS)
        return CellOutcome(tuple(self._values), stdout, stderr, self._error, self._count, self._incomplete)


def code_error(event: CellError) -> CodeError:
    return CodeError(event.name, event.value, strip_terminal_codes("\n".join(event.traceback)))


def read_cell(stdout: bytes, omitted: Omitted | None = None) -> CellOutcome:
    """The outcome of a cell whose whole stdout is this. ``omitted``: what was not kept of it."""
    lines, fold = EventLines(), CellFold()
    parts = (stdout,) if omitted is None else (stdout[: omitted.at], stdout[omitted.at :])
    for number, part in enumerate(parts):
        if number:
            lines.skip()
        for event in lines.feed(part):
            fold.add(event)
    return fold.outcome()

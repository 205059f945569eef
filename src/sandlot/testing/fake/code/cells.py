"""Scripted cells: what a test says that code gives."""

from __future__ import annotations

import base64
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sandlot.domain.code.contexts import Language
from sandlot.domain.code.events import CellData, CellError, CellEvent, CellText

# A value by media type; bytes for pictures.
Forms = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CellCall:
    """What a handler receives: the code, its context and language, and the variables of this run."""

    code: str
    context: str
    language: Language
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CellReply:
    """What a scripted cell gives.

    ``value``: the value of its last expression; a string is its text. ``displays``: what it displays before.
    ``error``: the name and the message of the error that ends it.
    """

    value: str | Forms | None = None
    displays: Sequence[Forms] = ()
    stdout: str = ""
    stderr: str = ""
    error: tuple[str, str] | None = None
    delay_s: float = 0.0

    def events(self) -> list[CellEvent]:
        events: list[CellEvent] = []
        if self.stdout:
            events.append(CellText("stdout", self.stdout))
        if self.stderr:
            events.append(CellText("stderr", self.stderr))
        events += [CellData(_encoded(forms)) for forms in self.displays]
        if self.value is not None:
            forms = {"text/plain": self.value} if isinstance(self.value, str) else self.value
            events.append(CellData(_encoded(forms), main=True))
        if self.error is not None:
            name, message = self.error
            events.append(CellError(name, message, (f"{name}: {message}",)))
        return events


CellHandler = Callable[[CellCall], CellReply | Awaitable[CellReply]]


@dataclass(slots=True)
class CellScripts:
    """Rules by code, newest first. A rule matches a cell whose code contains the rule's code."""

    _rules: list[tuple[str, CellHandler]] = field(default_factory=list)

    def add(self, code: str, handler: CellHandler) -> None:
        self._rules.insert(0, (code.strip(), handler))

    async def reply(self, call: CellCall) -> CellReply | None:
        """The reply to a cell, or None if no rule matches."""
        for code, handler in self._rules:
            if code in call.code:
                answer = handler(call)
                return await answer if inspect.isawaitable(answer) else answer
        return None


def _encoded(forms: Forms) -> dict[str, Any]:
    return {
        kind: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for kind, value in forms.items()
    }

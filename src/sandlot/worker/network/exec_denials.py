"""Which connections were denied while a command ran. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from sandlot.domain.execution import Exited
from sandlot.domain.network.decisions import Denied

# Of one session. A command that ended long ago is rarely asked for, and then without its denials.
MAX_REMEMBERED: Final = 1000
MAX_LISTED: Final = 20  # of one command; the latest

T = TypeVar("T")


class ExecDenials:
    """``since``: the different denials since a time. A command's are those until somebody sees its end."""

    def __init__(self, since: Callable[[float], tuple[Denied, ...]], clock: Callable[[], float]) -> None:
        self._since = since
        self._clock = clock
        self._began: dict[str, float] = {}
        self._ended: dict[str, tuple[Denied, ...]] = {}

    def started(self, exec_id: str) -> None:
        """Call it before the command can do anything. A second call for the same command changes nothing."""
        if exec_id not in self._began and exec_id not in self._ended:
            _remember(self._began, exec_id, self._clock())

    def ended(self, exec_id: str, exited: Exited) -> Exited:
        """The end of a command with what was denied meanwhile. Every reader gets the same."""
        denied = self._ended.get(exec_id)
        if denied is None:
            began = self._began.pop(exec_id, None)
            if began is None:
                return exited
            denied = self._since(began)[-MAX_LISTED:]
            _remember(self._ended, exec_id, denied)
        return replace(exited, denied=denied) if denied else exited

    def forget(self) -> None:
        """The session has another sandbox, which knows no command of the old one."""
        self._began.clear()
        self._ended.clear()


def _remember(entries: dict[str, T], exec_id: str, value: T) -> None:
    entries[exec_id] = value
    if len(entries) > MAX_REMEMBERED:
        del entries[next(iter(entries))]

"""``Cast``: one session's recording as asciicast v2, line by line. Pure: times are passed in.

The first line is the header. Each other line is an event: seconds since the recording began, a code, and
text. ``o`` is output, ``r`` a terminal's new size, and ``m`` a marker, which players show as a chapter.
Commands that run at the same time share the recording, in the order of their output.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sandlot.domain.execution import Channel, ExecRequest, Exited, PtySize, verdict_of
from sandlot.domain.history.masking import MAX_SECRETS, masked, masked_words
from sandlot.domain.recordings.masked_stream import MaskedStream
from sandlot.domain.text.printable import escape_unprintable

MEDIA_TYPE: Final = "application/x-asciicast"
SIZE: Final = PtySize()
# A session may be idle for hours between two commands. Players wait no longer than this many seconds.
IDLE_LIMIT_S: Final = 2.0
NOT_SHOWN: Final = "(command not shown)"

_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_LONE_NEWLINE: Final = re.compile(r"(?<!\r)\n")


class _Text:
    """One output of one command: bytes in pieces, shown as text."""

    def __init__(self, secrets: Collection[str], *, terminal: bool) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._masked = MaskedStream(secrets)
        self._terminal = terminal
        self._after_return = False

    def feed(self, data: bytes) -> str:
        return self._lines(self._masked.feed(self._decoder.decode(data)))

    def end(self) -> str:
        rest = self._decoder.decode(b"", final=True)
        return self._lines(self._masked.feed(rest) + self._masked.end())

    def _lines(self, text: str) -> str:
        """A player needs a carriage return at a line's end. Only a terminal writes it by itself."""
        if self._terminal or not text:
            return text
        first = 1 if self._after_return and text[0] == "\n" else 0
        self._after_return = text[-1] == "\r"
        if "\r" not in text:  # as most output, which this makes twice as fast
            return text[:first] + text[first:].replace("\n", "\r\n")
        return text[:first] + _LONE_NEWLINE.sub("\r\n", text[first:])


class Cast:
    """``began_at``: the recording's beginning, in whole seconds since the epoch. ``last_s``: the time of its
    last event, if it continues one.

    Each method returns the lines to add.
    """

    def __init__(self, began_at: int, last_s: float = 0.0) -> None:
        self._began_at = began_at
        self._last_s = last_s
        self._execs: dict[str, dict[Channel, _Text]] = {}
        self._line_begins = True

    def header(self, title: str) -> bytes:
        fields = {
            "version": 2,
            "width": SIZE.cols,
            "height": SIZE.rows,
            "timestamp": self._began_at,
            "idle_time_limit": IDLE_LIMIT_S,
            "title": title,
        }
        return _line(fields)

    def started(self, at: float, request: ExecRequest, shown: str, secrets: Sequence[str]) -> bytes:
        """``shown``: what is shown of the command. ``secrets``: masked in its output."""
        in_shell = "" if request.shell is None else f"({request.shell}) "
        lines = self._marker(at, f"exec {request.exec_id} started")
        if request.pty is not None:
            lines += self.resized(at, request.pty)
        lines += self._output(at, f"{self._new_line()}{in_shell}$ {_one_screen_line(shown)}\r\n")
        if len(secrets) > MAX_SECRETS:
            return lines + self._output(at, f"[not recorded: more than {MAX_SECRETS} variables to mask]\r\n")
        terminal = request.pty is not None
        self._execs[request.exec_id] = {
            channel: _Text(secrets, terminal=terminal) for channel in (Channel.STDOUT, Channel.STDERR)
        }
        return lines

    def output(self, at: float, exec_id: str, channel: Channel, data: bytes) -> bytes:
        texts = self._execs.get(exec_id)
        return b"" if texts is None else self._output(at, texts[channel].feed(data))

    def gap(self, at: float, exec_id: str, missing: int) -> bytes:
        """``missing``: how many bytes of the command's output were not kept."""
        return self._flushed(at, exec_id) + self._marker(at, f"exec {exec_id}: {missing} bytes were not kept")

    def ended(self, at: float, exec_id: str, exited: Exited) -> bytes:
        how = f"{verdict_of(exited).value}, exit code {exited.code}"
        return self._closed(at, exec_id) + self._marker(at, f"exec {exec_id} ended: {how}")

    def unseen(self, at: float, exec_id: str, reason: str) -> bytes:
        """The command's end could not be seen."""
        return self._closed(at, exec_id) + self._marker(at, f"exec {exec_id}: end not seen: {reason}")

    def resized(self, at: float, size: PtySize) -> bytes:
        return self._event(at, "r", f"{size.cols}x{size.rows}")

    def note(self, at: float, text: str, *, visible: bool = False) -> bytes:
        text = escape_unprintable(text)
        shown = self._output(at, f"{self._new_line()}[{text}]\r\n") if visible else b""
        return self._marker(at, text) + shown

    def _flushed(self, at: float, exec_id: str) -> bytes:
        texts = self._execs.get(exec_id, {})
        return b"".join(self._output(at, text.end()) for text in texts.values())

    def _closed(self, at: float, exec_id: str) -> bytes:
        lines = self._flushed(at, exec_id)
        self._execs.pop(exec_id, None)
        return lines

    def _new_line(self) -> str:
        return "" if self._line_begins else "\r\n"

    def _output(self, at: float, text: str) -> bytes:
        if not text:
            return b""
        self._line_begins = text.endswith("\n")
        return self._event(at, "o", text)

    def _marker(self, at: float, label: str) -> bytes:
        return self._event(at, "m", label)

    def _event(self, at: float, code: str, data: str) -> bytes:
        # A clock may be set back. A recording's times never go back.
        self._last_s = max(self._last_s, round(at - self._began_at, 6))
        return _line([self._last_s, code, data])


def shown_command(request: ExecRequest, secrets: Sequence[str]) -> str:
    if request.argv is not None:
        return masked_words(request.argv, secrets)
    return masked(request.text, secrets)


@dataclass(frozen=True, slots=True)
class CastEnd:
    """How a recording ends that is to be continued.

    ``size``: how many bytes of it are whole lines; what follows was cut by a crash.
    """

    began_at: int
    last_s: float
    size: int


def end_of(first_line: bytes, tail: bytes, size: int) -> CastEnd | None:
    """``tail``: the last bytes of a recording of ``size`` bytes. None if it has no whole header."""
    header = _parsed(first_line)
    if not first_line.endswith(b"\n") or not isinstance(header, dict) or "timestamp" not in header:
        return None
    whole, _, cut = tail.rpartition(b"\n")
    last = _parsed(whole.rpartition(b"\n")[2])
    return CastEnd(int(header["timestamp"]), last[0] if isinstance(last, list) else 0.0, size - len(cut))


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _one_screen_line(command: str) -> str:
    return "\r\n".join(escape_unprintable(line) for line in command.split("\n"))


def _line(value: object) -> bytes:
    return _encode(value).encode("utf-8", "replace") + b"\n"

"""``Result``: what came of a command, as text; ``result.output`` and ``result["output"]`` are the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sandlot.domain.errors import SandlotError
from sandlot.domain.execution import ExecResult, Verdict
from sandlot.domain.kept_output import Omitted

SHOWN_CHARACTERS: Final = 200  # of the output, in repr and in an error's message

_KEYS: Final = (
    "exit_code",
    "stdout",
    "stderr",
    "output",
    "verdict",
    "ok",
    "timed_out",
    "truncated",
    "retryable",
    "duration_ms",
    "peak_memory_bytes",
    "output_bytes",
    "stdout_omitted_bytes",
    "stderr_omitted_bytes",
    "exec_id",
    "session_id",
    "generation",
)


@dataclass(frozen=True, slots=True, repr=False)
class Result(Mapping[str, Any]):
    """Text is UTF-8, with what is not replaced; ``raw`` has the exact bytes."""

    raw: ExecResult

    @property
    def exit_code(self) -> int:
        return self.raw.exit_code

    @property
    def stdout(self) -> str:
        return text_of(self.raw.stdout, self.raw.stdout_omitted)

    @property
    def stderr(self) -> str:
        return text_of(self.raw.stderr, self.raw.stderr_omitted)

    @property
    def output(self) -> str:
        """Both channels, in the order in which they were read: two pipes, so lines that were written to both
        at nearly the same time may have changed places. ``merge_output=True`` keeps their order.
        """
        return text_of(self.raw.output, self.raw.output_omitted)

    @property
    def marked_output(self) -> str:
        """``output``, and where some of it is missing, how much: "[… 12,345,678 bytes left out …]"."""
        return text_of(self.raw.output, self.raw.output_omitted, marked=True)

    @property
    def stdout_omitted_bytes(self) -> int:
        """How much of stdout is missing in ``stdout``; ``raw.stdout_omitted`` says where."""
        return _omitted_bytes(self.raw.stdout_omitted)

    @property
    def stderr_omitted_bytes(self) -> int:
        return _omitted_bytes(self.raw.stderr_omitted)

    @property
    def verdict(self) -> Verdict:
        return self.raw.verdict

    @property
    def ok(self) -> bool:
        return self.raw.exit_code == 0 and self.raw.verdict is Verdict.OK

    @property
    def timed_out(self) -> bool:
        return self.raw.timed_out

    @property
    def truncated(self) -> bool:
        return self.raw.truncated

    @property
    def retryable(self) -> bool:
        return self.raw.retryable

    @property
    def duration_ms(self) -> float:
        return self.raw.exited.duration_ms

    @property
    def peak_memory_bytes(self) -> int:
        return self.raw.exited.peak_memory_bytes

    @property
    def output_bytes(self) -> int:
        """How much the command wrote, kept or not."""
        return self.raw.exited.output_bytes

    @property
    def exec_id(self) -> str:
        return self.raw.exec_id

    @property
    def session_id(self) -> str:
        return self.raw.session_id

    @property
    def generation(self) -> int:
        return self.raw.generation

    def check(self) -> Result:
        """Itself if the command went well; ``CommandFailed`` otherwise."""
        if not self.ok:
            raise CommandFailed(self)
        return self

    def __getitem__(self, key: str) -> Any:
        if key not in _KEYS:
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(_KEYS)

    def __len__(self) -> int:
        return len(_KEYS)

    def __repr__(self) -> str:
        output = _shown(self.output)
        return f"Result(exit_code={self.exit_code}, verdict={self.verdict.value!r}, output={output})"


class CommandFailed(SandlotError):
    """Raised only on request (``check=True``): a failed command is a result."""

    code = "command_failed"
    may_have_executed = True

    def __init__(self, result: Result) -> None:
        told = result.stderr.strip() or result.output.strip()
        super().__init__(
            f"the command ended with exit code {result.exit_code} ({result.verdict.value})"
            + (
                f": …{told[-SHOWN_CHARACTERS:]}"
                if len(told) > SHOWN_CHARACTERS
                else f": {told}"
                if told
                else ""
            ),
            details={
                "exit_code": result.exit_code,
                "verdict": result.verdict.value,
                "exec_id": result.exec_id,
            },
        )
        self.result = result


def text_of(data: bytes, omitted: Omitted | None, *, marked: bool = False) -> str:
    """Both sides of what is missing are read by themselves: half a character before it and half of another
    behind it must not become a third.
    """
    if omitted is None:
        return data.decode("utf-8", "replace")
    head, tail = (part.decode("utf-8", "replace") for part in (data[: omitted.at], data[omitted.at :]))
    return f"{head}{marker(omitted)}{tail}" if marked else head + tail


def marked_bytes(data: bytes, omitted: Omitted | None) -> bytes:
    """``data`` with a line that says how much is missing, where it is."""
    if omitted is None:
        return data
    return data[: omitted.at] + marker(omitted).encode() + data[omitted.at :]


def marker(omitted: Omitted) -> str:
    return marking(f"{omitted.bytes:,} bytes left out")


def marking(left_out: str) -> str:
    """A line of its own, in the place of what is left out."""
    return f"\n[… {left_out} …]\n"


def _omitted_bytes(omitted: Omitted | None) -> int:
    return 0 if omitted is None else omitted.bytes


def _shown(text: str) -> str:
    if len(text) <= SHOWN_CHARACTERS:
        return repr(text)
    return f"{text[:SHOWN_CHARACTERS]!r}… ({len(text)} characters)"

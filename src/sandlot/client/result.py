"""``Result``: the outcome of a command. ``result.output`` and ``result["output"]`` are the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sandlot.domain.errors import SandlotError
from sandlot.domain.execution import ExecResult, Verdict
from sandlot.domain.kept_output import Omitted
from sandlot.domain.network.decisions import Denied

SHOWN_CHARACTERS: Final = 200  # of the output, in ``repr`` and in error messages

_KEYS: Final = (
    "exit_code",
    "stdout",
    "stderr",
    "output",
    "verdict",
    "ok",
    "timed_out",
    "truncated",
    "duration_ms",
    "peak_memory_bytes",
    "output_bytes",
    "stdout_omitted_bytes",
    "stderr_omitted_bytes",
    "exec_id",
    "session_id",
    "generation",
    "denied",
)


@dataclass(frozen=True, slots=True, repr=False)
class Result(Mapping[str, Any]):
    """The outcome of a command: exit code, output, and why it ended.

    Text is decoded as UTF-8; invalid bytes are replaced. Attributes can also be read as keys:
    ``result["output"]``.

    raw: the result as it came from the service, with the exact bytes.
    """

    raw: ExecResult

    @property
    def exit_code(self) -> int:
        """The command's exit code."""
        return self.raw.exit_code

    @property
    def stdout(self) -> str:
        """What the command wrote to stdout."""
        return text_of(self.raw.stdout, self.raw.stdout_omitted)

    @property
    def stderr(self) -> str:
        """What the command wrote to stderr."""
        return text_of(self.raw.stderr, self.raw.stderr_omitted)

    @property
    def output(self) -> str:
        """Stdout and stderr together, in the order in which they were read.

        They are two pipes, so lines written to both at nearly the same time may be swapped. Run the
        command with ``merge_output=True`` to keep their exact order.
        """
        return text_of(self.raw.output, self.raw.output_omitted)

    @property
    def marked_output(self) -> str:
        """``output``; where some of it is missing, a line says how much.

        The line reads ``[… 12,345,678 bytes left out …]``.
        """
        return text_of(self.raw.output, self.raw.output_omitted, marked=True)

    @property
    def stdout_omitted_bytes(self) -> int:
        """How many bytes are missing in ``stdout``; ``raw.stdout_omitted`` says where."""
        return _omitted_bytes(self.raw.stdout_omitted)

    @property
    def stderr_omitted_bytes(self) -> int:
        """How many bytes are missing in ``stderr``; ``raw.stderr_omitted`` says where."""
        return _omitted_bytes(self.raw.stderr_omitted)

    @property
    def verdict(self) -> Verdict:
        """Why the command ended, such as ``ok``, ``nonzero``, ``timeout`` or ``oom``."""
        return self.raw.verdict

    @property
    def denied(self) -> tuple[Denied, ...]:
        """The connections from the sandbox that were denied while the command ran, oldest first.

        Each has ``target`` (host and port), ``rule``, and ``text``, which says why and how to allow it.
        """
        return self.raw.denied

    @property
    def ok(self) -> bool:
        """Whether the command succeeded: exit code 0 and verdict ``ok``."""
        return self.raw.exit_code == 0 and self.raw.verdict is Verdict.OK

    @property
    def timed_out(self) -> bool:
        """Whether the command was killed because its timeout had passed."""
        return self.raw.timed_out

    @property
    def truncated(self) -> bool:
        """Whether some of the output is missing."""
        return self.raw.truncated

    @property
    def duration_ms(self) -> float:
        """How long the command ran, in milliseconds."""
        return self.raw.exited.duration_ms

    @property
    def peak_memory_bytes(self) -> int:
        """The most memory that the command used, in bytes."""
        return self.raw.exited.peak_memory_bytes

    @property
    def output_bytes(self) -> int:
        """How many bytes the command wrote, including those that were not kept."""
        return self.raw.exited.output_bytes

    @property
    def exec_id(self) -> str:
        """The id of this command run."""
        return self.raw.exec_id

    @property
    def session_id(self) -> str:
        """The id of the session that ran the command."""
        return self.raw.session_id

    @property
    def generation(self) -> int:
        """Which of the session's sandboxes ran the command; 1 is the first."""
        return self.raw.generation

    def check(self) -> Result:
        """Return this result if the command succeeded; raise ``CommandFailed`` otherwise."""
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
        output = _abbreviated(self.output)
        return f"Result(exit_code={self.exit_code}, verdict={self.verdict.value!r}, output={output})"


class CommandFailed(SandlotError):
    """A command failed and the caller asked for an error, with ``check=True`` or ``Result.check``.

    Otherwise a failed command is a normal result. ``result`` has the outcome. Only the SDK raises
    this error; it never comes from a server.

    What to do: look at ``result.verdict`` and ``result.output``.
    """

    code = "command_failed"
    may_have_executed = True

    def __init__(self, result: Result) -> None:
        output = result.stderr.strip() or result.output.strip()
        super().__init__(
            f"Command failed with exit code {result.exit_code} ({result.verdict.value})"
            + (
                f": …{output[-SHOWN_CHARACTERS:]}"
                if len(output) > SHOWN_CHARACTERS
                else f": {output}"
                if output
                else "."
            ),
            details={
                "exit_code": result.exit_code,
                "verdict": result.verdict.value,
                "exec_id": result.exec_id,
            },
        )
        self.result = result


def text_of(data: bytes, omitted: Omitted | None, *, marked: bool = False) -> str:
    """Decode output as UTF-8. ``marked``: insert a line where bytes are missing.

    The two sides of a gap are decoded separately. Otherwise half a character before the gap and
    half of another one after it could become a third character.
    """
    if omitted is None:
        return data.decode("utf-8", "replace")
    head, tail = (part.decode("utf-8", "replace") for part in (data[: omitted.at], data[omitted.at :]))
    return f"{head}{marker(omitted)}{tail}" if marked else head + tail


def marked_bytes(data: bytes, omitted: Omitted | None) -> bytes:
    """Return ``data``; where bytes are missing, a line says how many."""
    if omitted is None:
        return data
    return data[: omitted.at] + marker(omitted).encode() + data[omitted.at :]


def marker(omitted: Omitted) -> str:
    return marker_line(f"{omitted.bytes:,} bytes left out")


def marker_line(left_out: str) -> str:
    """Return the line that replaces omitted text. ``left_out`` says what is missing."""
    return f"\n[… {left_out} …]\n"


def _omitted_bytes(omitted: Omitted | None) -> int:
    return 0 if omitted is None else omitted.bytes


def _abbreviated(text: str) -> str:
    if len(text) <= SHOWN_CHARACTERS:
        return repr(text)
    return f"{text[:SHOWN_CHARACTERS]!r}… ({len(text)} characters)"

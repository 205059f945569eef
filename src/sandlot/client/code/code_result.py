"""``CodeResult``: the outcome of a cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sandlot.client.result import SHOWN_CHARACTERS
from sandlot.domain.code.result import CellOutcome, CodeError, Value, read_cell
from sandlot.domain.errors import SandlotError
from sandlot.domain.execution import ExecResult, Verdict
from sandlot.domain.network.decisions import Denied


@dataclass(frozen=True, slots=True, repr=False)
class CodeResult:
    """The outcome of code that ran in a context: its value, what it displayed and wrote, its error.

    raw: the result of the exec that the code is, as it came from the service.
    outcome: what the code's events say.
    """

    raw: ExecResult
    outcome: CellOutcome

    @classmethod
    def of(cls, raw: ExecResult) -> CodeResult:
        """Read the events in an exec's result, such as that of ``Session.exec(exec_id).wait().raw``."""
        return cls(raw, read_cell(raw.stdout, raw.stdout_omitted))

    @property
    def results(self) -> tuple[Value, ...]:
        """What the code displayed, and the value of its last expression."""
        return self.outcome.values

    @property
    def text(self) -> str:
        """The value of the last expression as text; empty if it has none."""
        return next((value.text or "" for value in self.results if value.main), "")

    @property
    def png(self) -> bytes | None:
        """The first PNG picture among ``results``."""
        return next((picture for value in self.results if (picture := value.png) is not None), None)

    @property
    def stdout(self) -> str:
        """What the code wrote to stdout."""
        return self.outcome.stdout

    @property
    def stderr(self) -> str:
        """What the code wrote to stderr."""
        return self.outcome.stderr

    @property
    def error(self) -> CodeError | None:
        """The error that ended the code, with ``name``, ``value`` and ``traceback``."""
        return self.outcome.error

    @property
    def execution_count(self) -> int | None:
        """The number that the kernel gave to this code."""
        return self.outcome.execution_count

    @property
    def ok(self) -> bool:
        """Whether the code ran to its end without an error."""
        return self.error is None and self.raw.exit_code == 0 and self.raw.verdict is Verdict.OK

    @property
    def verdict(self) -> Verdict:
        """Why the code ended, such as ``ok``, ``nonzero``, ``timeout`` or ``killed``."""
        return self.raw.verdict

    @property
    def timed_out(self) -> bool:
        """Whether the code was interrupted because its timeout had passed."""
        return self.raw.timed_out

    @property
    def truncated(self) -> bool:
        """Whether some of what it wrote or displayed is missing."""
        return self.raw.truncated or self.outcome.incomplete

    @property
    def denied(self) -> tuple[Denied, ...]:
        """The connections from the sandbox that were denied while the code ran, oldest first."""
        return self.raw.denied

    @property
    def duration_ms(self) -> float:
        """How long the code ran, in milliseconds."""
        return self.raw.exited.duration_ms

    @property
    def exec_id(self) -> str:
        """The id of this run."""
        return self.raw.exec_id

    @property
    def session_id(self) -> str:
        """The id of the session that ran the code."""
        return self.raw.session_id

    @property
    def generation(self) -> int:
        """Which of the session's sandboxes ran the code; 1 is the first."""
        return self.raw.generation

    def check(self) -> CodeResult:
        """Return this result if the code succeeded; raise ``CodeFailed`` otherwise."""
        if not self.ok:
            raise CodeFailed(self)
        return self

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Any:
        """A notebook shows the code's value."""
        main = [value for value in self.results if value.main]
        return main[-1]._repr_mimebundle_() if main else ({"text/plain": repr(self)}, {})

    def __repr__(self) -> str:
        facts = [f"verdict={self.verdict.value!r}"]
        if self.text:
            facts.append(f"text={self.text[:SHOWN_CHARACTERS]!r}")
        if self.error is not None:
            facts.append(f"error={str(self.error)[:SHOWN_CHARACTERS]!r}")
        return f"CodeResult({', '.join(facts)}, results={len(self.results)})"


class CodeFailed(SandlotError):
    """Code failed and the caller asked for an error, with ``check=True`` or ``CodeResult.check``.

    Otherwise failed code is a normal result. ``result`` has the outcome. Only the SDK raises this error; it
    never comes from a server.

    What to do: look at ``result.error`` and ``result.verdict``.
    """

    code = "code_failed"
    may_have_executed = True

    def __init__(self, result: CodeResult) -> None:
        why = str(result.error or result.raw.stderr.decode("utf-8", "replace").strip())
        super().__init__(
            f"Code failed ({result.verdict.value})" + (f": {why[:SHOWN_CHARACTERS]}" if why else "."),
            details={
                "error": None if result.error is None else result.error.name,
                "verdict": result.verdict.value,
                "exec_id": result.exec_id,
            },
        )
        self.result = result

"""JSON bodies of code contexts and cells. ``Context`` crosses the wire unchanged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from sandlot.domain.code.contexts import Cell, Context, CreateContext, Language
from sandlot.domain.execution import MAX_OUTPUT_LIMIT_BYTES, ExecRequest, Verdict
from sandlot.domain.ids import new_exec_id

# For the server's validator: an unknown field is an error and is not ignored.
STRICT: dict[str, Any] = {"extra": "forbid"}


@dataclass(frozen=True, slots=True)
class CellBody:
    """Code for a context.

    code: the code.
    context: the id of the context. A language's name is the id of its default context, which the first cell
        makes.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    code: str
    context: str = Language.PYTHON.value

    def to_domain(self) -> Cell:
        return Cell(self.code, self.context)

    @classmethod
    def of(cls, cell: Cell) -> CellBody:
        return cls(cell.code, str(cell.context))


@dataclass(frozen=True, slots=True)
class CreateContextBody:
    """A context to create.

    language: what it speaks.
    id: its id; null for a new one. Creating the same context again returns it.
    cwd: the folder that it starts in; null for ``/workspace``.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    language: Language = Language.PYTHON
    id: str | None = None
    cwd: str | None = None

    def to_domain(self) -> CreateContext:
        return CreateContext(self.language, self.id, self.cwd)

    @classmethod
    def of(cls, request: CreateContext) -> CreateContextBody:
        return cls(request.language, request.context_id, request.cwd)


@dataclass(frozen=True, slots=True)
class ContextListBody:
    """The contexts of a session."""

    contexts: list[Context]


@dataclass(frozen=True, slots=True)
class RunCellBody:
    """Code to run in a context.

    code: the code.
    exec_id: the id of this run. Using the same id again returns the same events and never runs the code
        twice. Null: a new id.
    timeout_s: seconds after which the code is interrupted; null for the server's default.
    env: variables for this code.
    approved: a person has approved it. It then passes rules of command policies that ask.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    code: str
    exec_id: str | None = None
    timeout_s: float | None = None
    env: dict[str, str] = field(default_factory=dict)
    approved: bool = False

    def to_domain(self, context: str, *, exec_id: str | None = None) -> ExecRequest:
        return ExecRequest(
            cell=Cell(self.code, context),
            exec_id=self.exec_id or exec_id or new_exec_id(),
            env=self.env,
            timeout_s=self.timeout_s,
            # A picture is one long line, which must not be cut.
            output_limit=MAX_OUTPUT_LIMIT_BYTES,
            approved=self.approved,
        )


@dataclass(frozen=True, slots=True)
class CellEndBody:
    """How a cell ended, as the last line of its events.

    exec_id: the id of this run.
    exit_code: 0 if the code ran to its end without an error.
    verdict: why it ended.
    duration_ms: how long it ran, in milliseconds.
    truncated: whether some of its events are missing.
    type: always ``end``.
    """

    exec_id: str
    exit_code: int
    verdict: Verdict
    duration_ms: float
    truncated: bool
    type: str = "end"

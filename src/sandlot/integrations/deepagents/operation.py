"""``Operation``: one action in a sandbox, written once for blocking and for async callers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from deepagents.backends.protocol import (
    DeleteResult,
    EditResult,
    ExecuteOffloadResult,
    GlobResult,
    GrepResult,
    LsResult,
    ReadResult,
    WriteResult,
)

from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import FileProblem, SandlotError
from sandlot.integrations.model_text import format_error
from sandlot.integrations.sandboxes import Work
from sandlot.integrations.toolbox.answer import answer_or_raise

T = TypeVar("T")

# Deep Agents' codes for file errors. Some of its own code depends on them.
_FRAMEWORK_CODES: Final = {
    "not_found": "file_not_found",
    "permission_denied": "permission_denied",
    "is_a_directory": "is_directory",
    "not_a_directory": "invalid_path",
    "invalid_path": "invalid_path",
}


_RESULTS_WITH_ERROR: Final = (
    DeleteResult,
    EditResult,
    GlobResult,
    GrepResult,
    LsResult,
    ReadResult,
    WriteResult,
)


@dataclass(frozen=True, slots=True)
class Operation(Generic[T]):
    """An action in a sandbox, with its error handling.

    ``on_error`` turns an error into an answer. A raised error would end the agent's whole run.
    """

    work: Work[T]
    on_error: Callable[[SandlotError], T]

    async def run_in(self, session: AsyncSession) -> T:
        """Perform the action. Every error becomes an answer, because the model chose the arguments
        and can choose the next step.
        """
        try:
            return await self.work(session)
        except SandlotError as error:
            return self.on_error(error)

    def on_unavailable(self, error: SandlotError) -> T:
        """The answer if no sandbox is available. Re-raise errors that only a developer can fix."""
        answer_or_raise(error)
        return self.on_error(error)


def add_note(answer: object, note: str) -> bool:
    """Add a note where the model will read it; return False if the answer has no such place."""
    if isinstance(answer, ExecuteOffloadResult):
        answer.response.output = f"{note}\n{answer.response.output}"
    elif isinstance(answer, _RESULTS_WITH_ERROR) and answer.error is not None:
        answer.error = f"{answer.error}\n{note}"
    else:
        return False
    return True


def file_error(error: SandlotError) -> str:
    """The framework's code for the error if it has one, else a message for the model."""
    if isinstance(error, FileProblem):
        return _FRAMEWORK_CODES.get(error.reason, error.message)
    return format_error(error)


def normalized_path(path: str) -> str:
    """An absolute path without empty and ``.`` parts, in the form that the sandbox returns."""
    if not path.startswith("/") or "\0" in path:
        raise FileProblem(f"{path!r}: the path must begin with /.", reason="invalid_path", path=path)
    return "/" + "/".join(part for part in path.split("/") if part not in {"", "."})

"""``Operation``: one thing to do in a sandbox, written once for blocking and for async callers."""

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
from sandlot.integrations.model_text import for_model_error
from sandlot.integrations.sandboxes import Work
from sandlot.integrations.toolbox.answer import refusal

T = TypeVar("T")

# The words that Deep Agents has for what a file system refuses; some of its own code acts on them.
_CODES: Final = {
    "not_found": "file_not_found",
    "permission_denied": "permission_denied",
    "is_a_directory": "is_directory",
    "not_a_directory": "invalid_path",
    "invalid_path": "invalid_path",
}


_WITH_ERROR: Final = (DeleteResult, EditResult, GlobResult, GrepResult, LsResult, ReadResult, WriteResult)


@dataclass(frozen=True, slots=True)
class Operation(Generic[T]):
    """``failed`` makes an answer of an error: raised, it would end the whole run of the agent."""

    work: Work[T]
    failed: Callable[[SandlotError], T]

    async def within(self, session: AsyncSession) -> T:
        """In a sandbox every error is an answer: the arguments were the model's, and so is the next step."""
        try:
            return await self.work(session)
        except SandlotError as error:
            return self.failed(error)

    def refused(self, error: SandlotError) -> T:
        """There is no sandbox to be had. What only a developer can mend is raised again."""
        refusal(error)
        return self.failed(error)


def tell(answer: object, note: str) -> bool:
    """Puts a note where the model will read it; False if this answer has no such place."""
    if isinstance(answer, ExecuteOffloadResult):
        answer.response.output = f"{note}\n{answer.response.output}"
    elif isinstance(answer, _WITH_ERROR) and answer.error is not None:
        answer.error = f"{answer.error}\n{note}"
    else:
        return False
    return True


def file_error(error: SandlotError) -> str:
    """One of the framework's own words where it has one for this."""
    if isinstance(error, FileProblem):
        return _CODES.get(error.reason, error.message)
    return for_model_error(error)


def absolute(path: str) -> str:
    """The path without what says nothing in it, as the sandbox names what it finds below."""
    if not path.startswith("/") or "\0" in path:
        raise FileProblem(f"{path!r}: a path begins with /", reason="invalid_path", path=path)
    return "/" + "/".join(part for part in path.split("/") if part not in {"", "."})

"""Contexts: stateful kernels inside a sandbox, and the cells of code that they run.

A cell is an exec. So it has an id that never runs twice, output that is read by offset, a time limit, and it
survives a restart of the worker. Its stdout is one event of ``sandlot.domain.code.events`` in each line.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from sandlot.domain.errors import InvalidRequest

# How many contexts one session can have at once. Each is a process with tens of megabytes.
MAX_CONTEXTS: Final = 16
MAX_CODE_BYTES: Final = 2 * 1024 * 1024

_CONTEXT_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


class Language(StrEnum):
    """What a context can speak. Which of them a session has depends on its image.

    python: IPython.
    javascript: JavaScript, by Deno.
    typescript: TypeScript, by Deno.
    bash: bash.
    r: R.
    """

    PYTHON = "python"
    JAVASCRIPT = "javascript"
    TYPESCRIPT = "typescript"
    BASH = "bash"
    R = "r"


@dataclass(frozen=True, slots=True)
class Cell:
    """One piece of code for a context.

    code: the code.
    context: the id of a context. A language's name is the id of its default context, which the first cell
        makes.
    """

    code: str
    context: str = Language.PYTHON

    def __post_init__(self) -> None:
        check_context_id(self.context)
        try:
            size = len(self.code.encode())
        except UnicodeEncodeError:
            raise InvalidRequest("The code is not valid Unicode text.") from None
        if size > MAX_CODE_BYTES:
            raise InvalidRequest(
                f"The code has {size} bytes; the limit is {MAX_CODE_BYTES}. Put long content into a file."
            )


@dataclass(frozen=True, slots=True)
class CreateContext:
    """A request for a context.

    language: what it speaks.
    context_id: its id; ``None`` for a new one. Creating the same context again returns it.
    cwd: the folder that it starts in; ``None`` for ``/workspace``.
    """

    language: Language = Language.PYTHON
    context_id: str | None = None
    cwd: str | None = None

    def __post_init__(self) -> None:
        if self.context_id is not None:
            check_context_id(self.context_id)
            if self.context_id in set(Language) and self.context_id != self.language:
                raise InvalidRequest(
                    f"The id {self.context_id!r} belongs to the default context of that language."
                )
        if self.cwd is not None and ("\0" in self.cwd or not self.cwd or len(self.cwd) > 4096):
            raise InvalidRequest("cwd is not a valid path.")


@dataclass(frozen=True, slots=True)
class Context:
    """A context of a session.

    id: its id.
    language: what it speaks.
    cwd: the folder that it was started in.
    busy: whether a cell runs in it.
    executions: how many cells it has run since its kernel started.
    restarts: how many times its kernel was started again, because somebody asked or because it died.
    """

    id: str
    language: Language
    cwd: str
    busy: bool = False
    executions: int = 0
    restarts: int = 0


class ContextService(Protocol):
    """The part of ``SandboxService`` about contexts. ``Unsupported`` where the image has no kernels.

    A cell runs through ``execute`` or ``start_exec``, with ``ExecRequest(cell=...)``. Cells of one context
    run one after another. Killing a cell's exec interrupts the kernel and keeps its state.
    """

    async def create_context(self, session_id: str, request: CreateContext) -> Context: ...

    async def list_contexts(self, session_id: str) -> Sequence[Context]: ...

    async def interrupt_context(self, session_id: str, context_id: str) -> None:
        """Interrupt what the context runs. Its state stays."""
        ...

    async def restart_context(self, session_id: str, context_id: str) -> Context:
        """Start the context's kernel again: its state goes, and what it runs ends with an error."""
        ...

    async def delete_context(self, session_id: str, context_id: str) -> None:
        """End the context. Idempotent."""
        ...


def new_context_id(language: Language) -> str:
    """A new id. A client chooses it, so that a repeated request makes no second context."""
    return f"{language}-{secrets.token_hex(4)}"


def check_context_id(text: str) -> None:
    if _CONTEXT_ID.fullmatch(text) is None:
        raise InvalidRequest(
            f"{text!r:.80} is not a valid id for a context. Use 1-63 lowercase letters, digits, - and _, "
            "starting with a letter or digit."
        )

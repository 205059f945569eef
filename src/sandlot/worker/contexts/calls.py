"""The context calls of ``WorkerService``."""

from __future__ import annotations

from collections.abc import Sequence

from sandlot.domain.code.contexts import Context, CreateContext
from sandlot.domain.errors import Unsupported
from sandlot.domain.execution import ExecRequest


class ContextCalls:
    async def create_context(self, session_id: str, request: CreateContext) -> Context:
        raise _no_kernels()

    async def list_contexts(self, session_id: str) -> Sequence[Context]:
        raise _no_kernels()

    async def interrupt_context(self, session_id: str, context_id: str) -> None:
        raise _no_kernels()

    async def restart_context(self, session_id: str, context_id: str) -> Context:
        raise _no_kernels()

    async def delete_context(self, session_id: str, context_id: str) -> None:
        raise _no_kernels()


def check_cell(request: ExecRequest) -> None:
    if request.cell is not None:
        raise _no_kernels()


def _no_kernels() -> Unsupported:
    return Unsupported("This sandbox's image has no kernels, so it has no code contexts. Run a command.")

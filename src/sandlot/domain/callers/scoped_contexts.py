"""The context calls of ``ScopedService``. A context runs code, so all of them need the scope for execs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sandlot.domain.callers.principal import Scope
from sandlot.domain.code.contexts import Context, CreateContext
from sandlot.domain.service import SandboxService


class ScopedContexts:
    _service: SandboxService
    _require: Callable[[Scope], None]

    async def create_context(self, session_id: str, request: CreateContext) -> Context:
        self._require(Scope.EXEC)
        return await self._service.create_context(session_id, request)

    async def list_contexts(self, session_id: str) -> Sequence[Context]:
        self._require(Scope.EXEC)
        return await self._service.list_contexts(session_id)

    async def interrupt_context(self, session_id: str, context_id: str) -> None:
        self._require(Scope.EXEC)
        await self._service.interrupt_context(session_id, context_id)

    async def restart_context(self, session_id: str, context_id: str) -> Context:
        self._require(Scope.EXEC)
        return await self._service.restart_context(session_id, context_id)

    async def delete_context(self, session_id: str, context_id: str) -> None:
        self._require(Scope.EXEC)
        await self._service.delete_context(session_id, context_id)

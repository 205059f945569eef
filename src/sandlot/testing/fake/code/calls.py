"""The calls of ``FakeService`` about code contexts."""

from __future__ import annotations

from collections.abc import Sequence

from sandlot.domain.code.contexts import Context, CreateContext
from sandlot.testing.fake.computer import FakeComputer


class ContextCalls:
    def _computer(self, session_id: str, *, starts_work: bool = False) -> FakeComputer:
        raise NotImplementedError

    async def create_context(self, session_id: str, request: CreateContext) -> Context:
        return self._computer(session_id, starts_work=True).contexts.create(request)

    async def list_contexts(self, session_id: str) -> Sequence[Context]:
        return self._computer(session_id).contexts.list()

    async def interrupt_context(self, session_id: str, context_id: str) -> None:
        self._computer(session_id).contexts.interrupt(context_id)

    async def restart_context(self, session_id: str, context_id: str) -> Context:
        return self._computer(session_id, starts_work=True).contexts.restart(context_id)

    async def delete_context(self, session_id: str, context_id: str) -> None:
        self._computer(session_id).contexts.delete(context_id)

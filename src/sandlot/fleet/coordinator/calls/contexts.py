"""Calls about code contexts, which a coordinator forwards to a session's worker."""

from __future__ import annotations

from collections.abc import Sequence

from sandlot.domain.code.contexts import Context, CreateContext
from sandlot.fleet.coordinator.calls.forwarded import ENGINE_CALL_S, ForwardedCalls


class ContextCalls(ForwardedCalls):
    async def create_context(self, session_id: str, request: CreateContext) -> Context:
        # A kernel starts first, which takes seconds on a busy machine.
        async with self._worker_for(session_id, within_s=ENGINE_CALL_S) as worker:
            return await worker.create_context(session_id, request)

    async def list_contexts(self, session_id: str) -> Sequence[Context]:
        async with self._worker_for(session_id, within_s=self._options.call_timeout_s) as worker:
            return await worker.list_contexts(session_id)

    async def interrupt_context(self, session_id: str, context_id: str) -> None:
        async with self._worker_for(session_id, within_s=self._options.call_timeout_s) as worker:
            await worker.interrupt_context(session_id, context_id)

    async def restart_context(self, session_id: str, context_id: str) -> Context:
        async with self._worker_for(session_id, within_s=ENGINE_CALL_S) as worker:
            return await worker.restart_context(session_id, context_id)

    async def delete_context(self, session_id: str, context_id: str) -> None:
        async with self._worker_for(session_id, within_s=self._options.call_timeout_s) as worker:
            await worker.delete_context(session_id, context_id)

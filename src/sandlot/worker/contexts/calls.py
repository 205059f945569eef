"""The calls of ``WorkerService`` on contexts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from sandlot.domain.code.contexts import Context, CreateContext, check_context_id
from sandlot.domain.errors import InvalidRequest, NotFound
from sandlot.providers.base import Sandbox
from sandlot.worker.contexts.contexts import Contexts
from sandlot.worker.contexts.program import BRIDGE_EXEC_ID
from sandlot.worker.sessions.lifecycle import SessionLifecycle
from sandlot.worker.sessions.live_session import LiveSession

if TYPE_CHECKING:
    Use = AbstractAsyncContextManager[tuple[LiveSession, Sandbox]]


class ContextCalls:
    _tenant: str
    _sessions: SessionLifecycle
    _contexts: Contexts

    def _use_contexts(self, session_id: str, context_id: str | None = None) -> Use:
        if context_id is not None:
            check_context_id(context_id)
        return self._sessions.use(self._tenant, session_id)

    async def create_context(self, session_id: str, request: CreateContext) -> Context:
        async with self._use_contexts(session_id) as (_, sandbox):
            return await self._contexts.create(sandbox, request)

    async def list_contexts(self, session_id: str) -> Sequence[Context]:
        async with self._use_contexts(session_id) as (_, sandbox):
            return await self._contexts.list(sandbox)

    async def interrupt_context(self, session_id: str, context_id: str) -> None:
        async with self._use_contexts(session_id, context_id) as (_, sandbox):
            await self._contexts.interrupt(sandbox, context_id)

    async def restart_context(self, session_id: str, context_id: str) -> Context:
        async with self._use_contexts(session_id, context_id) as (_, sandbox):
            return await self._contexts.restart(sandbox, context_id)

    async def delete_context(self, session_id: str, context_id: str) -> None:
        async with self._use_contexts(session_id, context_id) as (_, sandbox):
            await self._contexts.delete(sandbox, context_id)


def check_id_of_new(exec_id: str) -> None:
    """The kernels' own exec is not a client's to start …"""
    if exec_id == BRIDGE_EXEC_ID:
        raise InvalidRequest(f"The exec id {BRIDGE_EXEC_ID} is reserved. Choose another one.")


def check_id_of_known(exec_id: str) -> None:
    """… nor to see, read or end."""
    if exec_id == BRIDGE_EXEC_ID:
        raise NotFound(f"This session has no exec {exec_id}.")

"""The context methods of ``HttpService``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from sandlot.client.http.calls import ServiceCalls
from sandlot.client.http.paths import session_path
from sandlot.client.http.transport.request import encode, segment
from sandlot.domain.code.contexts import Context, CreateContext
from sandlot.wire.code.context_bodies import ContextListBody, CreateContextBody

# The first context of a session starts its kernel.
KERNEL_START_S: Final = 120.0

_CONTEXT: Final = msgspec.json.Decoder(Context)
_CONTEXTS: Final = msgspec.json.Decoder(ContextListBody)


def contexts_path(session_id: str) -> str:
    return session_path(session_id) + "/contexts"


class ContextOperations(ServiceCalls):
    async def create_context(self, session_id: str, request: CreateContext) -> Context:
        # Without an id, the same request twice makes two contexts.
        return await self._context(
            session_id,
            contexts_path(session_id),
            encode(CreateContextBody.of(request)),
            repeatable=request.context_id is not None,
        )

    async def list_contexts(self, session_id: str) -> Sequence[Context]:
        decoded = await self._read(session_id, _CONTEXTS, contexts_path(session_id))
        contexts: list[Context] = decoded.contexts
        return contexts

    async def interrupt_context(self, session_id: str, context_id: str) -> None:
        path = f"{contexts_path(session_id)}/{segment(context_id)}/interrupt"
        # A second interrupt could meet the next cell.
        await self._calls_to(session_id).call("POST", path, repeatable=False)

    async def restart_context(self, session_id: str, context_id: str) -> Context:
        path = f"{contexts_path(session_id)}/{segment(context_id)}/restart"
        return await self._context(session_id, path, None, repeatable=False)

    async def delete_context(self, session_id: str, context_id: str) -> None:
        path = f"{contexts_path(session_id)}/{segment(context_id)}"
        await self._calls_to(session_id).call("DELETE", path, repeatable=True)

    async def _context(self, session_id: str, path: str, body: bytes | None, *, repeatable: bool) -> Context:
        calls = self._calls_to(session_id)
        answer = await calls.call("POST", path, body, repeatable=repeatable, read_timeout_s=KERNEL_START_S)
        context: Context = calls.decode(_CONTEXT, answer)
        return context

"""Saves sessions' transitions to the store. Ending a session must work on a full disk too, since it
frees space. So transitions that could not be written are kept and written later.
"""

from __future__ import annotations

import structlog

from sandlot.domain.errors import StorageProblem
from sandlot.domain.recovery import SandboxRecord
from sandlot.worker.store.database import SessionRecord, Store

log = structlog.get_logger("sandlot.transitions")


class Transitions:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._pending: dict[str, SessionRecord] = {}

    async def save(self, record: SessionRecord, removing: SandboxRecord | None) -> None:
        self.drop_pending(record.session.id)
        try:
            await self._store.save([record], removing)
        except StorageProblem as error:
            log.warning(
                "cannot write a session's record yet; will retry",
                session=record.session.id,
                error=error.message,
            )
            self._pending[record.session.id] = record

    async def save_pending(self) -> None:
        while self._pending:
            session_id, record = next(iter(self._pending.items()))
            await self._store.save([record])
            if self._pending.get(session_id) is record:
                del self._pending[session_id]

    def drop_pending(self, session_id: str) -> None:
        """Drop the session's unwritten transition: a newer one replaces it."""
        self._pending.pop(session_id, None)

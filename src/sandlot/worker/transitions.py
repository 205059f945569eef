"""Transitions of sessions on their way to the store: a disk that is full must not keep anybody from ending
what uses it, so what it did not take is written later.
"""

from __future__ import annotations

import structlog

from sandlot.domain.errors import StorageProblem
from sandlot.domain.recovery import SandboxRecord
from sandlot.worker.store import SessionRecord, Store

log = structlog.get_logger("sandlot.transitions")


class Transitions:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._unsaved: dict[str, SessionRecord] = {}

    async def save(self, record: SessionRecord, removing: SandboxRecord | None) -> None:
        self.superseded(record.session.id)
        try:
            await self._store.save([record], removing)
        except StorageProblem as error:
            log.warning("not written yet", session=record.session.id, error=error.message)
            self._unsaved[record.session.id] = record

    async def save_late(self) -> None:
        while self._unsaved:
            session_id, record = next(iter(self._unsaved.items()))
            await self._store.save([record])
            if self._unsaved.get(session_id) is record:
                del self._unsaved[session_id]

    def superseded(self, session_id: str) -> None:
        """What is written of the session now is later than what could not be written before."""
        self._unsaved.pop(session_id, None)

"""The calls of ``FakeService`` about volumes."""

from __future__ import annotations

from dataclasses import replace

from sandlot.domain.callers.principal import Principal
from sandlot.domain.session import Session, SessionState
from sandlot.domain.volumes.volume import (
    CreateVolume,
    Volume,
    VolumeMode,
    VolumePage,
    still_used,
    written_by,
)
from sandlot.testing.fake.records import Record
from sandlot.testing.fake.volumes.store import FakeVolumes


class VolumeCalls:
    _principal: Principal
    _records: dict[str, Record]
    _volumes: FakeVolumes

    def _expire(self, record: Record) -> bool:
        raise NotImplementedError

    async def create_volume(self, request: CreateVolume) -> Volume:
        return self._volumes.create(self._principal.tenant, request)

    async def get_volume(self, volume: str) -> Volume:
        return self._with_writer(self._volumes.get(self._principal.tenant, volume))

    async def list_volumes(self, *, after: str | None = None, limit: int = 100) -> VolumePage:
        page = self._volumes.page(self._principal.tenant, after, limit)
        return replace(page, volumes=tuple(map(self._with_writer, page.volumes)))

    async def delete_volume(self, volume: str) -> None:
        found = self._volumes.find(self._principal.tenant, volume)
        if found is None:
            return
        if users := [session.id for session in self._with_volume(found.id)]:
            raise still_used(found, users)
        self._volumes.delete(found)

    def _check_volumes(self, session: Session) -> None:
        """Raise ``Conflict`` if another session writes to what this one wants to write to."""
        for volume in session.volumes:
            writer = self._writer(volume.id)
            if volume.mode is VolumeMode.RW and writer not in (None, session.id):
                assert writer is not None
                raise written_by(volume, writer)

    def _with_writer(self, volume: Volume) -> Volume:
        return replace(volume, writer=self._writer(volume.id))

    def _writer(self, volume_id: str) -> str | None:
        for session in self._with_volume(volume_id):
            writes = any(each.id == volume_id and each.mode is VolumeMode.RW for each in session.volumes)
            if writes and session.state is SessionState.ACTIVE:
                return session.id
        return None

    def _with_volume(self, volume_id: str) -> list[Session]:
        """The sessions that have not ended and have it."""
        return [
            record.session
            for record in list(self._records.values())
            if not self._expire(record) and any(each.id == volume_id for each in record.session.volumes)
        ]

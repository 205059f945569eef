"""The volume calls of ``WorkerService``."""

from __future__ import annotations

from sandlot.domain.callers.principal import Principal
from sandlot.domain.volumes.volume import CreateVolume, Volume, VolumePage
from sandlot.worker.volumes.volumes import Volumes


class VolumeCalls:
    _principal: Principal
    _volumes: Volumes

    async def create_volume(self, request: CreateVolume) -> Volume:
        return await self._volumes.create(self._principal.tenant, request)

    async def get_volume(self, volume: str) -> Volume:
        return await self._volumes.get(self._principal.tenant, volume)

    async def list_volumes(self, *, after: str | None = None, limit: int = 100) -> VolumePage:
        return await self._volumes.page(self._principal.tenant, after, limit)

    async def delete_volume(self, volume: str) -> None:
        await self._volumes.delete(self._principal.tenant, volume)

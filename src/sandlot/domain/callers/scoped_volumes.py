"""The volume calls of ``ScopedService``. Volumes are files, so all of them need the scope for files."""

from __future__ import annotations

from collections.abc import Callable

from sandlot.domain.callers.principal import Scope
from sandlot.domain.service import SandboxService
from sandlot.domain.volumes.volume import CreateVolume, Volume, VolumePage


class ScopedVolumes:
    _service: SandboxService
    _require: Callable[[Scope], None]

    async def create_volume(self, request: CreateVolume) -> Volume:
        self._require(Scope.FILES)
        return await self._service.create_volume(request)

    async def get_volume(self, volume: str) -> Volume:
        self._require(Scope.FILES)
        return await self._service.get_volume(volume)

    async def list_volumes(self, *, after: str | None = None, limit: int = 100) -> VolumePage:
        self._require(Scope.FILES)
        return await self._service.list_volumes(after=after, limit=limit)

    async def delete_volume(self, volume: str) -> None:
        self._require(Scope.FILES)
        await self._service.delete_volume(volume)

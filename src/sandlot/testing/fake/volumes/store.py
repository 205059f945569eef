"""What the fake keeps of volumes, and how a computer sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from sandlot.domain.errors import InvalidRequest, Unsupported
from sandlot.domain.history.positions import worker_tag
from sandlot.domain.ids import new_volume_id
from sandlot.domain.volumes.listing import page_among
from sandlot.domain.volumes.volume import (
    CreateVolume,
    SessionVolume,
    Volume,
    VolumeMode,
    VolumePage,
    VolumeUse,
    check_room,
    no_volume_error,
    taken_name,
)
from sandlot.testing.fake.tree import Folder, Limited
from sandlot.testing.fake.workspaces.folders import bytes_in, read_only_copy
from sandlot.testing.fake.workspaces.store import A_MOMENT_S, FakeStore


class FakeVolumes:
    def __init__(self, store: FakeStore, worker_id: str, clock: Callable[[], float]) -> None:
        self._store = store
        self._tag = worker_tag(worker_id)
        self._clock = clock
        self._volumes: dict[str, Volume] = {}  # oldest first
        self._files: dict[str, Folder] = {}

    def create(self, tenant: str, request: CreateVolume) -> Volume:
        self.check()
        own = [known for known in self._volumes.values() if known.tenant == tenant]
        quota = request.quota_bytes or self._store.volume_quota_bytes
        size = sum(known.quota_bytes for known in own)
        check_room(len(own), size, quota, self._store.max_volumes, self._store.max_volume_bytes)
        if any(known.name == request.name for known in own):
            raise taken_name(request.name)
        latest = max((known.created_at for known in self._volumes.values()), default=0.0)
        volume = Volume(
            new_volume_id(self._tag), request.name, tenant, quota, max(self._clock(), latest + A_MOMENT_S)
        )
        self._volumes[volume.id], self._files[volume.id] = volume, Folder(0o755)
        return replace(volume, used_bytes=0)

    def find(self, tenant: str, name: str) -> Volume | None:
        own = (known for known in self._volumes.values() if known.tenant == tenant)
        return next((known for known in own if name in (known.id, known.name)), None)

    def get(self, tenant: str, name: str) -> Volume:
        """``NotFound`` if the tenant has no such volume."""
        self.check()
        found = self.find(tenant, name)
        if found is None:
            raise no_volume_error(name)
        return replace(found, used_bytes=bytes_in(self._files[found.id]))

    def page(self, tenant: str, after: str | None, limit: int) -> VolumePage:
        own = (self.get(tenant, known.id) for known in self._volumes.values() if known.tenant == tenant)
        return page_among(own, after=after, limit=limit)

    def delete(self, volume: Volume) -> None:
        del self._volumes[volume.id], self._files[volume.id]

    def resolve(self, tenant: str, uses: Sequence[VolumeUse]) -> tuple[SessionVolume, ...]:
        """The volumes that a new session asks for."""
        found = [(self.get(tenant, use.volume), use.mode) for use in uses]
        if len({volume.id for volume, _ in found}) < len(found):
            raise InvalidRequest("A session can have each volume only once.")
        return tuple(SessionVolume(volume.id, volume.name, mode) for volume, mode in found)

    def shown(self, volumes: Iterable[SessionVolume]) -> dict[str, Limited]:
        """What a computer that gets these now sees."""
        return {
            volume.name: (self._files[volume.id], self._volumes[volume.id].quota_bytes)
            if volume.mode is VolumeMode.RW
            else (read_only_copy(self._files[volume.id]), None)
            for volume in volumes
        }

    def check(self) -> None:
        abilities = self._store.abilities
        if not abilities.volumes:
            raise Unsupported(f"This server cannot keep volumes. {abilities.note}")

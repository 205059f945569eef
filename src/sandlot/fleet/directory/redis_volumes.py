"""The names of volumes in Redis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sandlot.fleet.directory import rules
from sandlot.fleet.directory.lease import Lease
from sandlot.fleet.directory.volume_names import VolumeEntry

# Volumes per call, as for sessions.
RECORDS_AT_ONCE: Final = 50


class RedisVolumeNames:
    async def _run(self, name: str, **arguments: Any) -> list[Any]:
        raise NotImplementedError

    async def _write(self, name: str, lease: Lease, **arguments: Any) -> list[Any]:
        raise NotImplementedError

    async def record_volumes(self, lease: Lease, entries: Sequence[VolumeEntry]) -> frozenset[str]:
        taken: set[str] = set()
        for begin in range(0, len(entries), RECORDS_AT_ONCE):
            packed = [
                (entry.tenant, entry.name, entry.id) for entry in entries[begin : begin + RECORDS_AT_ONCE]
            ]
            (ids,) = await self._write("record_volumes", lease, volumes=packed)
            taken.update(volume_id.decode() for volume_id in ids)
        return frozenset(taken)

    async def forget_volume(self, lease: Lease, entry: VolumeEntry) -> None:
        await self._write("forget_volume", lease, tenant=entry.tenant, volume=entry.name, id=entry.id)

    async def find_volume(self, tenant: str, name: str) -> str | None:
        outcome, *answer = await self._run("find_volume", tenant=tenant, volume=name)
        return None if outcome == b"nothing" else str(answer[0].decode())

    async def bury_volume(self, entry: VolumeEntry, worker_id: str) -> None:
        (outcome,) = await self._run(
            "bury_volume", worker=worker_id, tenant=entry.tenant, volume=entry.name, id=entry.id
        )
        if outcome == b"not_gone":
            raise rules.volume_not_gone(entry.name, worker_id)

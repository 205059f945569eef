"""The worker's records of volumes, in a SQLite file of their own.

A volume that is being made, or deleted, is on record as such. So a worker that dies in between knows which
files are half made and which are no longer wanted, and never has to guess that a volume belongs to nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from sandlot.domain.errors import SandlotError
from sandlot.domain.paging import place_of
from sandlot.domain.volumes.volume import Volume, taken_name
from sandlot.worker.store.sqlite_file import SqliteFile

FILE_NAME: Final = "volumes.sqlite3"
# ``place``: its order in lists.
_VOLUMES: Final = """
CREATE TABLE volumes (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, name TEXT NOT NULL, place TEXT NOT NULL, state TEXT NOT NULL,
    quota INTEGER NOT NULL, volume BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX by_name ON volumes (tenant, name);
CREATE UNIQUE INDEX of_tenant ON volumes (tenant, place);
"""


class RecordState(StrEnum):
    MAKING = "making"
    KEPT = "kept"
    DELETING = "deleting"


class VolumeRecords(SqliteFile):
    # A record may not be lost: nobody would find the files again.
    synchronous = "FULL"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / FILE_NAME, (_VOLUMES,))

    async def add(self, volume: Volume) -> None:
        """Record a volume that is about to be made. ``Conflict`` if the tenant has one of this name."""
        values = (
            volume.id,
            volume.tenant,
            volume.name,
            place_of(volume),
            RecordState.MAKING.value,
            volume.quota_bytes,
            msgspec.json.encode(volume),
        )
        try:
            await self._write([("INSERT INTO volumes VALUES (?, ?, ?, ?, ?, ?, ?)", values)])
        except _NameTaken:
            raise taken_name(volume.name) from None

    async def set_state(self, volume_id: str, state: RecordState) -> None:
        await self._write([("UPDATE volumes SET state = ? WHERE id = ?", (state.value, volume_id))])

    async def remove(self, volume_id: str) -> None:
        await self._write([("DELETE FROM volumes WHERE id = ?", (volume_id,))])

    async def find(self, tenant: str, volume: str) -> Volume | None:
        """``volume``: its name or id."""
        found = await self._all(
            "SELECT volume FROM volumes WHERE tenant = ? AND (id = ? OR name = ?) AND state = 'kept'",
            *(tenant, volume, volume),
        )
        return found[0] if found else None

    async def page(self, tenant: str, after: str, limit: int) -> Sequence[Volume]:
        return await self._all(
            "SELECT volume FROM volumes WHERE tenant = ? AND place > ? AND state = 'kept' "
            "ORDER BY place LIMIT ?",
            *(tenant, after, limit),
        )

    async def all(self) -> Sequence[Volume]:
        return await self._all("SELECT volume FROM volumes WHERE state = 'kept' ORDER BY place")

    async def unfinished(self) -> Sequence[Volume]:
        """Those that are being made or deleted. If nobody is at it, what is left of them must go."""
        return await self._all("SELECT volume FROM volumes WHERE state != 'kept' ORDER BY place")

    async def is_unfinished(self, volume_id: str) -> bool:
        return bool(await self._all("SELECT volume FROM volumes WHERE state != 'kept' AND id = ?", volume_id))

    async def unfinished_named(self, tenant: str, name: str) -> Volume | None:
        found = await self._all(
            "SELECT volume FROM volumes WHERE tenant = ? AND name = ? AND state != 'kept'", tenant, name
        )
        return found[0] if found else None

    async def use_of(self, tenant: str) -> tuple[int, int]:
        """How many volumes a tenant has, and how large they may grow together."""
        statement = "SELECT count(*), coalesce(sum(quota), 0) FROM volumes WHERE tenant = ?"
        ((count, quota),) = await self._reading(lambda: self._rows(statement, (tenant,)))
        return int(count), int(quota)

    async def _all(self, statement: str, *values: object) -> Sequence[Volume]:
        rows = await self._reading(lambda: self._rows(statement, values))
        return [msgspec.json.decode(row[0], type=Volume) for row in rows]

    def _duplicate(self, error: Exception) -> SandlotError:
        return _NameTaken(str(error))


class _NameTaken(SandlotError):
    """Another volume of the tenant has this name."""

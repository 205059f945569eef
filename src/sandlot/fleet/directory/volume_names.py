"""The part of ``Directory`` about volumes: which volume of a tenant has which name.

A volume's id says which worker it is on (``domain.ids.volume_tag``), so a name leads to a worker in one look.
Workers are the source of truth here too: they record the names of their volumes again in an emptied
directory, before it is settled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sandlot.domain.volumes.volume import Volume
from sandlot.fleet.directory.lease import Lease


@dataclass(frozen=True, slots=True)
class VolumeEntry:
    """A worker's record of one volume's name."""

    tenant: str
    name: str
    id: str

    @classmethod
    def of(cls, volume: Volume) -> VolumeEntry:
        return cls(volume.tenant, volume.name, volume.id)


class VolumeNames(Protocol):
    async def record_volumes(self, lease: Lease, entries: Sequence[VolumeEntry]) -> frozenset[str]:
        """Record the names of volumes on this worker.

        Returns the ids of those whose name another volume of the tenant has. They keep no name here.
        """
        ...

    async def forget_volume(self, lease: Lease, entry: VolumeEntry) -> None:
        """Free a volume's name, unless another volume has it."""
        ...

    async def find_volume(self, tenant: str, name: str) -> str | None:
        """The id of the tenant's volume of this name. None if there is none.

        Raises ``Unavailable`` while the directory is unsettled and does not know it.
        """
        ...

    async def bury_volume(self, entry: VolumeEntry, worker_id: str) -> None:
        """Free the name of a volume whose worker is gone. If that one comes back, it records it again.

        Raises ``Conflict`` while the worker may still come back.
        """
        ...

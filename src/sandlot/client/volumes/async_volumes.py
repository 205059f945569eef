"""``AsyncVolumes``: files that sessions share, and that outlive them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Literal, Protocol

from sandlot.domain.errors import InvalidRequest, Unavailable
from sandlot.domain.service import SandboxService
from sandlot.domain.volumes.volume import CreateVolume, Volume, VolumeMode, VolumeUse, parse_mode

# A volume, or its name or id.
VolumeOrName = Volume | str
# What a session gets: by name or id, whether it writes.
VolumeModes = Mapping[str, VolumeMode | Literal["rw", "ro"]]


class Opened(Protocol):
    """What the volumes know of their client, which is an ``AsyncClient``."""

    async def opened(self) -> SandboxService:
        """Return the service; the first call starts a local one."""
        ...


class AsyncVolumes:
    """Your volumes: create, list and delete them.

    A volume is a folder with a name and a size of its own. Give it to sessions with
    ``create(volumes={"data": "rw"})``; they see it at ``/volumes/data``. One session at a time writes to it.
    Others read a copy of its files, as they were when their sandbox got it, with ``"ro"``.
    """

    def __init__(self, client: Opened) -> None:
        self._client = client

    async def create(self, name: str, *, size: int | str | None = None) -> Volume:
        """Create an empty volume.

        ``size``: how large it may grow, in bytes or with a unit, such as "2g". It defaults to what the server
        is set up for. Raises ``Conflict`` if you have a volume of this name, and ``Unsupported`` if the
        server's store keeps no volumes.
        """
        return await (await self._client.opened()).create_volume(CreateVolume(name, _bytes(size)))

    async def list(self, *, partial: bool = False) -> AsyncGenerator[Volume, None]:
        """Iterate over your volumes, oldest first; pages are fetched as needed.

        ``partial``: if workers of a fleet do not answer, go without their volumes instead of raising
        ``Unavailable`` at the end.
        """
        service = await self._client.opened()
        after: str | None = None
        missing: set[str] = set()
        while True:
            page = await service.list_volumes(after=after)
            for volume in page.volumes:
                yield volume
            missing.update(page.missing)
            if page.next is None:
                break
            after = page.next
        if missing and not partial:
            raise Unavailable(
                "Workers that do not answer, so that their volumes are missing: "
                f"{', '.join(sorted(missing))}. Retry, or pass partial=True.",
                details={"missing": sorted(missing)},
            )

    async def get(self, volume: VolumeOrName) -> Volume:
        """Return a volume by its name or id: how much it uses, and which session writes to it."""
        return await (await self._client.opened()).get_volume(_name_of(volume))

    async def delete(self, volume: VolumeOrName) -> None:
        """Delete a volume with its files. Deleting twice is no error.

        Raises ``Conflict`` while a session has it, even one that hibernates.
        """
        await (await self._client.opened()).delete_volume(_name_of(volume))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


def volume_uses(volumes: VolumeModes | None) -> tuple[VolumeUse, ...]:
    if volumes is None:
        return ()
    if not isinstance(volumes, Mapping):
        raise InvalidRequest(
            f"volumes must be a mapping such as {{'data': 'rw'}}, not {type(volumes).__name__}."
        )
    return tuple(VolumeUse(name, parse_mode(mode)) for name, mode in volumes.items())


def _bytes(size: int | str | None) -> int | None:
    if size is None or isinstance(size, int):
        return size
    from sandlot.config.registry.recipes import bytes_of_size

    return bytes_of_size(size)


def _name_of(volume: VolumeOrName) -> str:
    # The id: a volume that was deleted and created again under this name is another one.
    return volume.id if isinstance(volume, Volume) else volume

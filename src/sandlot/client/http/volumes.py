"""The volume methods of ``HttpService``. All go to the server: only it knows which worker has a volume."""

from __future__ import annotations

from typing import Final

import msgspec

from sandlot.client.http.calls import ServiceCalls
from sandlot.client.http.transport.request import encode, query, segment
from sandlot.domain.errors import NotFound, Unsupported
from sandlot.domain.volumes.volume import CreateVolume, Volume, VolumePage
from sandlot.wire.volumes.volume_bodies import CreateVolumeBody

_VOLUME: Final = msgspec.json.Decoder(Volume)
_PAGE: Final = msgspec.json.Decoder(VolumePage)


def volume_path(volume: str) -> str:
    return "/v1/volumes/" + segment(volume)


class VolumeOperations(ServiceCalls):
    async def create_volume(self, request: CreateVolume) -> Volume:
        body = encode(CreateVolumeBody.of(request))
        # Sent twice, it would answer that the name is taken.
        volume: Volume = self._connection.decode(
            _VOLUME, await self._call("POST", "/v1/volumes", body, repeatable=False)
        )
        return volume

    async def get_volume(self, volume: str) -> Volume:
        found: Volume = self._connection.decode(_VOLUME, await self._get(volume_path(volume)))
        return found

    async def list_volumes(self, *, after: str | None = None, limit: int = 100) -> VolumePage:
        try:
            answer = await self._get("/v1/volumes" + query(after=after, limit=limit))
        except NotFound as error:
            raise Unsupported(
                f"The server at {self.url} is an older version, which keeps no volumes. Update it."
            ) from error
        page: VolumePage = self._connection.decode(_PAGE, answer)
        return page

    async def delete_volume(self, volume: str) -> None:
        await self._call("DELETE", volume_path(volume), repeatable=True)

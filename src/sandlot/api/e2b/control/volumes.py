"""Volumes: create, list and delete them, and which one a sandbox asks for."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from sandlot.api.e2b.bodies import read_body
from sandlot.api.e2b.control.bodies import NewVolume, VolumeBody, VolumeMount
from sandlot.api.e2b.control.calls import ControlCall
from sandlot.api.responses.json import json_response
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.paging import MAX_PAGE
from sandlot.domain.volumes.volume import CreateVolume, Volume, VolumeMode, VolumeUse

_MOUNTED_IN: Final = "/volumes/"
# E2B's SDKs send it to an address of E2B unless they are told another one. So it must not open anything.
_NO_TOKEN: Final = "no-access-without-a-sandbox"


async def create_volume(call: ControlCall) -> Response:
    body = read_body(await call.request.body(), NewVolume)
    return json_response(_body(await call.service.create_volume(CreateVolume(body.name))), 201)


async def list_volumes(call: ControlCall) -> Response:
    call.query()
    volumes: list[Volume] = []
    after: str | None = None
    while True:
        page = await call.service.list_volumes(after=after, limit=MAX_PAGE)
        volumes += page.volumes
        after = page.next
        if after is None:
            return json_response([_body(volume) for volume in volumes])


async def get_volume(call: ControlCall) -> Response:
    return json_response(_body(await call.service.get_volume(call.request.path_params["volume_id"])))


async def delete_volume(call: ControlCall) -> Response:
    volume = await call.service.get_volume(call.request.path_params["volume_id"])
    await call.service.delete_volume(volume.id)
    return Response(status_code=204)


def _body(volume: Volume) -> VolumeBody:
    return VolumeBody(volume.id, volume.name, _NO_TOKEN)


def volume_uses(mounts: list[VolumeMount] | None) -> tuple[VolumeUse, ...]:
    """The volumes that a sandbox writes to."""
    for mount in mounts or ():
        if mount.path.rstrip("/") != _MOUNTED_IN + mount.name:
            raise InvalidRequest(
                f"Volume {mount.name[:64]!r} can only be at {_MOUNTED_IN}{mount.name[:64]}, not at "
                f"{mount.path[:200]!r}. Mount it there."
            )
    return tuple(VolumeUse(mount.name, VolumeMode.RW) for mount in mounts or ())

"""``Volumes``: ``AsyncVolumes`` without ``await``."""

from __future__ import annotations

from sandlot.client.sync.blocking import Facade, blocking, iterating
from sandlot.client.volumes.async_volumes import AsyncVolumes


class Volumes(Facade[AsyncVolumes]):
    """Your volumes: create, list and delete them.

    A volume is a folder with a name and a size of its own. Give it to sessions with
    ``create(volumes={"data": "rw"})``; they see it at ``/volumes/data``. One session at a time writes to it.
    Others read a copy of its files, as they were when their sandbox got it, with ``"ro"``.
    """

    create = blocking(AsyncVolumes.create)
    list = iterating(AsyncVolumes.list)
    get = blocking(AsyncVolumes.get)
    delete = blocking(AsyncVolumes.delete)

"""The messages of ``filesystem.Filesystem``."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sandlot.api.e2b.bodies import Body


class AtPath(Body, frozen=True):
    path: str = ""


class ListDir(Body, frozen=True):
    path: str = ""
    depth: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)] = 1


class Move(Body, frozen=True):
    source: str = ""
    destination: str = ""


class Watch(Body, frozen=True):
    path: str = ""
    recursive: bool = False
    include_entry: bool = False
    allow_network_mounts: bool = False


class Watcher(Body, frozen=True):
    watcher_id: str = ""

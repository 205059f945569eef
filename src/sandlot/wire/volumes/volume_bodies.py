"""HTTP bodies of volumes. ``Volume`` and ``VolumePage`` are JSON already, and cross the wire unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sandlot.domain.volumes.volume import CreateVolume
from sandlot.wire.http_bodies import STRICT


@dataclass(frozen=True, slots=True)
class CreateVolumeBody:
    """The volume to create.

    name: its name: 1 to 63 lowercase letters, digits and ``. _ -``.
    quota_bytes: how large it may grow; null for what the server is set up for.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    name: str
    quota_bytes: int | None = None

    def to_domain(self) -> CreateVolume:
        return CreateVolume(self.name, self.quota_bytes)

    @classmethod
    def of(cls, request: CreateVolume) -> CreateVolumeBody:
        return cls(request.name, request.quota_bytes)

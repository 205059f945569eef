"""Where a sandbox's files live.

``WorkspaceStore`` is the seam: what is behind /sandbox may be a plain volume, or later one with a quota.

``VolumeStore`` gives each sandbox a named volume of the engine. The engine fills it from the prepared
image's /sandbox when it is first mounted, and removes it; so the worker never opens, changes or deletes a
path that a sandbox can influence, and needs no rights on the engine's disk.

The volume is not mounted nosuid and nodev: the engine's local driver takes mount options only for a device
of its own (type and device given), not for a plain folder. It makes no difference inside: under
no-new-privileges a setuid bit gives nothing, nobody holds MKNOD, and the engine's device cgroup refuses
devices anyway. A sandbox could leave a setuid file *owned by uid 1000* on the engine's disk; the engine
keeps that disk closed to other users of the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from sandlot.domain.errors import NotFound
from sandlot.providers.docker.engine import Engine
from sandlot.providers.docker.spec import LABEL_OWNER, LABEL_SANDBOX, VOLUME_TARGET, container_name


class WorkspaceStore(Protocol):
    def mount_for(self, sandbox_id: str) -> Mapping[str, Any]:
        """The mount at /sandbox, for the container's spec."""
        ...

    async def create(self, sandbox_id: str) -> None:
        """Succeeds if it is there already."""
        ...

    async def destroy(self, sandbox_id: str) -> None:
        """After the container is gone. Succeeds if it is gone already."""
        ...

    async def list(self) -> Sequence[str]:
        """The sandboxes that have one, whether or not they still have a container."""
        ...


class VolumeStore:
    def __init__(self, engine: Engine, owner: str) -> None:
        self._engine = engine
        self._owner = owner

    def mount_for(self, sandbox_id: str) -> Mapping[str, Any]:
        return {
            "Type": "volume",
            "Source": container_name(sandbox_id),
            "Target": VOLUME_TARGET,
            "VolumeOptions": {"NoCopy": False},
        }

    async def create(self, sandbox_id: str) -> None:
        labels = {LABEL_OWNER: self._owner, LABEL_SANDBOX: sandbox_id}
        await self._engine.create_volume(container_name(sandbox_id), labels)

    async def destroy(self, sandbox_id: str) -> None:
        name = container_name(sandbox_id)
        try:
            volume = await self._engine.inspect_volume(name)
        except NotFound:
            return
        if (volume.get("Labels") or {}).get(LABEL_OWNER) == self._owner:  # never another worker's
            await self._engine.remove_volume(name)

    async def list(self) -> Sequence[str]:
        volumes = await self._engine.list_volumes({LABEL_OWNER: self._owner, LABEL_SANDBOX: None})
        return [str(volume["Labels"][LABEL_SANDBOX]) for volume in volumes]

"""Stores sandboxes' files.

``WorkspaceStore`` is the interface. The storage behind /sandbox may be a plain volume, or later a
volume with a quota.

``VolumeStore`` gives each sandbox a named volume. The engine fills the volume from the prepared
image's /sandbox on first mount, and removes it. So the worker never opens, changes or deletes a
path that a sandbox can influence, and needs no rights on the engine's disk.

The volume is not mounted nosuid or nodev. The engine's local driver accepts mount options only for
a device (type and device given), not for a plain folder. Inside a sandbox this makes no difference:
under no-new-privileges a setuid bit has no effect, no process has MKNOD, and the engine's device
cgroup refuses devices anyway. A sandbox could leave a setuid file *owned by its own user* on the
engine's disk. The engine keeps that disk closed to other users of the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from sandlot.domain.errors import NotFound
from sandlot.providers.docker.engine import Engine
from sandlot.providers.docker.spec import LABEL_OWNER, LABEL_SANDBOX, VOLUME_TARGET, container_name


class WorkspaceStore(Protocol):
    def mount_for(self, sandbox_id: str) -> Mapping[str, Any]:
        """Returns the mount at /sandbox, for the container's spec."""
        ...

    async def create(self, sandbox_id: str) -> None:
        """Creates the sandbox's storage. Succeeds if it already exists."""
        ...

    async def destroy(self, sandbox_id: str) -> None:
        """Removes the storage. Call it after the container is gone. Succeeds if already removed."""
        ...

    async def list(self) -> Sequence[str]:
        """Lists the sandboxes that have storage, whether or not they still have a container."""
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
        # Never remove another worker's volume.
        if (volume.get("Labels") or {}).get(LABEL_OWNER) == self._owner:
            await self._engine.remove_volume(name)

    async def list(self) -> Sequence[str]:
        volumes = await self._engine.list_volumes({LABEL_OWNER: self._owner, LABEL_SANDBOX: None})
        return [str(volume["Labels"][LABEL_SANDBOX]) for volume in volumes]

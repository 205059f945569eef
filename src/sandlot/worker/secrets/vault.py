"""The secrets of a worker in memory, as ``sandlot secrets`` last set them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import structlog

from sandlot.domain.errors import SandlotError
from sandlot.domain.network.hosts import Target
from sandlot.domain.secrets.secret import Secret
from sandlot.worker.secrets.store import SecretStore

# Seconds until a worker applies what the command line has changed.
FOLLOW_S: Final = 1.0

log = structlog.get_logger("sandlot.secrets")


class Vault:
    """``also``: values that are masked beside those of the secrets, such as the server's own key.

    ``masked`` is one list that changes in place: give it to whatever masks values, once.
    """

    def __init__(self, folder: Path, also: Iterable[str] = ()) -> None:
        self.masked: list[str] = list(also)
        self._also = tuple(also)
        self._store = SecretStore(folder)
        self._secrets: Mapping[str, Secret] = {}
        self._following: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self._store.open()
        version = await self._load()
        self._following = asyncio.create_task(self._follow(version), name="secrets")

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
            self._following = None
        await self._store.close()

    def find(self, name: str, tenant: str, environment: str, target: Target) -> Secret | None:
        """The secret, if it is for such a session and may go to the target."""
        secret = self._secrets.get(name)
        if secret is None or not secret.is_for(tenant, environment) or not secret.may_go_to(target):
            return None
        return secret

    async def _follow(self, version: int) -> None:
        while True:
            await asyncio.sleep(FOLLOW_S)
            try:
                if await self._store.version() != version:
                    version = await self._load()
            except SandlotError as error:  # what was read before stays, and the next look may work
                log.warning("cannot read the secrets", error=error.message)

    async def _load(self) -> int:
        # The version first: a change between the two reads is then read again.
        version = await self._store.version()
        secrets = await self._store.all()
        self._secrets = {secret.name: secret for secret in secrets}
        self.masked[:] = (*self._also, *(secret.value for secret in secrets))
        if secrets:
            log.info("secrets", names=sorted(self._secrets))
        return version

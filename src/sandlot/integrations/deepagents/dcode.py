"""The sandbox provider for Deep Agents Code (``dcode --sandbox sandlot``).

dcode finds it by its entry point. It implements
``deepagents_code.integrations.sandbox_provider.SandboxProvider`` without importing it: that package
is an application with pinned dependencies, so Sandlot does not depend on it.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Final, Unpack

from sandlot.client.options import SessionOptions
from sandlot.client.sync.client import Client
from sandlot.domain.errors import InvalidRequest, NotFound
from sandlot.integrations.deepagents.backend import SandlotBackend

PREFIX: Final = "dcode-"


class SandlotProvider:
    """Creates and deletes sandboxes for dcode.

    A ``sandbox_id`` is the id of the sandbox's thread: ``backend.id``, which dcode prints.
    """

    # With None dcode assumes defaults: working directory /workspace, sandboxes that can be found
    # again by id, no snapshots. All of them hold here.
    metadata: Final = None

    def __init__(self, client: Client | None = None) -> None:
        self._client_or_none = client

    @property
    def _client(self) -> Client:
        if self._client_or_none is None:
            # Created on first use: dcode sometimes creates a provider only to read its metadata.
            self._client_or_none = Client()
        return self._client_or_none

    def get_or_create(
        self,
        *,
        sandbox_id: str | None = None,
        environment: str | None = None,
        **options: Unpack[SessionOptions],
    ) -> SandlotBackend:
        """Find a sandbox by id, or create one. An id whose sandbox is gone is an error."""
        if unknown := options.keys() - SessionOptions.__annotations__.keys():
            raise InvalidRequest(f"Unknown sandbox parameters: {', '.join(sorted(unknown))}.")
        if sandbox_id is not None and not any(True for _ in self._client.sessions(thread=sandbox_id)):
            raise NotFound(f"Sandbox {sandbox_id!r} does not exist. Leave out the id to create a new one.")
        thread = sandbox_id or PREFIX + secrets.token_hex(8)
        self._client.thread(thread, environment, **options)
        return SandlotBackend(self._client, environment=environment, thread=thread, **options)

    def delete(self, *, sandbox_id: str) -> None:
        """Delete a sandbox. Deleting it again is not an error."""
        for session in self._client.sessions(thread=sandbox_id):
            session.delete()

    async def aget_or_create(
        self,
        *,
        sandbox_id: str | None = None,
        environment: str | None = None,
        **options: Unpack[SessionOptions],
    ) -> SandlotBackend:
        return await asyncio.to_thread(
            self.get_or_create, sandbox_id=sandbox_id, environment=environment, **options
        )

    async def adelete(self, *, sandbox_id: str) -> None:
        await asyncio.to_thread(self.delete, sandbox_id=sandbox_id)

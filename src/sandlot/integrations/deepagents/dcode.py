"""The sandbox provider that Deep Agents Code (``dcode --sandbox sandlot``) finds by its entry point.

It has the shape of ``deepagents_code.integrations.sandbox_provider.SandboxProvider`` and does not import it:
that package is an application with its own pins, and who runs it has it.
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
    """``sandbox_id`` is the thread whose sandbox it is: ``backend.id``, as dcode prints it."""

    # With None dcode describes a provider itself: working directory /workspace, sandboxes found again by
    # their id, no snapshots. All of that is so.
    metadata: Final = None

    def __init__(self, client: Client | None = None) -> None:
        self._given = client

    @property
    def _client(self) -> Client:
        if self._given is None:
            # Not before it is needed: dcode makes providers only to ask for their metadata.
            self._given = Client()
        return self._given

    def get_or_create(
        self,
        *,
        sandbox_id: str | None = None,
        environment: str | None = None,
        **options: Unpack[SessionOptions],
    ) -> SandlotBackend:
        """A sandbox that was asked for by its id and is gone is an error, not a new one."""
        if unknown := options.keys() - SessionOptions.__annotations__.keys():
            raise InvalidRequest(f"no such parameter of a sandbox: {', '.join(sorted(unknown))}")
        if sandbox_id is not None and not any(True for _ in self._client.sessions(thread=sandbox_id)):
            raise NotFound(f"there is no sandbox {sandbox_id!r}; without an id a new one is made")
        thread = sandbox_id or PREFIX + secrets.token_hex(8)
        self._client.thread(thread, environment, **options)
        return SandlotBackend(self._client, environment=environment, thread=thread, **options)

    def delete(self, *, sandbox_id: str) -> None:
        """Deleting twice is no error."""
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

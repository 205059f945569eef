"""``HttpService``: implements the ``SandboxService`` contract by calling a server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Final

import msgspec

from sandlot.client.http.artifacts import ArtifactOperations
from sandlot.client.http.contexts import ContextOperations
from sandlot.client.http.files import HttpFiles
from sandlot.client.http.network import NetworkOperations
from sandlot.client.http.paths import events_path, session_path
from sandlot.client.http.ports import PortOperations
from sandlot.client.http.transport.connection import READ_TIMEOUT_S
from sandlot.client.http.transport.request import segment
from sandlot.client.http.volumes import VolumeOperations
from sandlot.client.http.workspaces import WorkspaceOperations
from sandlot.domain.capacity.usage import SandboxUsage
from sandlot.domain.computer import Files, ShellSummary
from sandlot.domain.errors import NotFound, Unsupported
from sandlot.domain.history.query import EventPage, EventQuery
from sandlot.domain.service import Catalogue, ServiceHealth
from sandlot.wire.exec_bodies import ShellListBody

_SHELLS: Final = msgspec.json.Decoder(ShellListBody)
_USAGE: Final = msgspec.json.Decoder(SandboxUsage)
_EVENTS: Final = msgspec.json.Decoder(EventPage)
_CATALOGUE: Final = msgspec.json.Decoder(Catalogue)
_HEALTH: Final = msgspec.json.Decoder(ServiceHealth)


class HttpService(
    PortOperations,
    NetworkOperations,
    WorkspaceOperations,
    ArtifactOperations,
    VolumeOperations,
    ContextOperations,
):
    """Implements ``SandboxService`` by calling a server."""

    # shells and files

    async def list_shells(self, session_id: str) -> Sequence[ShellSummary]:
        decoded = await self._read(session_id, _SHELLS, session_path(session_id) + "/shells")
        shells: list[ShellSummary] = decoded.shells
        return shells

    async def close_shell(self, session_id: str, name: str) -> None:
        path = f"{session_path(session_id)}/shells/{segment(name)}"
        await self._calls_to(session_id).call("DELETE", path, repeatable=True)

    def files(self, session_id: str) -> Files:
        return HttpFiles(self._calls_to(session_id), session_path(session_id) + "/files")

    async def get_usage(self, session_id: str) -> SandboxUsage:
        usage: SandboxUsage = await self._read(session_id, _USAGE, session_path(session_id) + "/usage")
        return usage

    # history

    async def list_events(self, query: EventQuery) -> EventPage:
        try:
            _, body = await self._connection.call(
                "GET", events_path(query), repeatable=True, read_timeout_s=READ_TIMEOUT_S + query.wait_s
            )
        except NotFound as error:
            raise Unsupported(
                f"The server at {self.url} is an older version, which keeps no history. Update it."
            ) from error
        page: EventPage = self._connection.decode(_EVENTS, body)
        return page

    async def read_recording(self, session_id: str) -> AsyncGenerator[bytes, None]:
        path = session_path(session_id) + "/recording"
        async with self._calls_to(session_id).stream(path) as response:
            async for piece in response.aiter_raw():
                yield piece

    # the service itself

    async def catalogue(self) -> Catalogue:
        catalogue: Catalogue = self._connection.decode(_CATALOGUE, await self._get("/v1/catalogue"))
        return catalogue

    async def health(self) -> ServiceHealth:
        health: ServiceHealth = self._connection.decode(_HEALTH, await self._get("/v1/health"))
        return health

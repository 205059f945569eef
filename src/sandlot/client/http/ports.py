"""Ports over HTTP: connections to them, and their previews."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import msgspec

from sandlot.client.http.execs import ExecOperations
from sandlot.client.http.paths import session_path
from sandlot.client.http.streams.port_stream import HttpPortStream
from sandlot.client.http.transport.request import encode, query
from sandlot.domain.computer import ByteStream
from sandlot.domain.network.ports import ExposePort, Exposure, Preview, check_port
from sandlot.wire.network.preview_bodies import ExposedPortListBody, ExposePortBody, PreviewBody

_PREVIEW: Final = msgspec.json.Decoder(PreviewBody)
_EXPOSED: Final = msgspec.json.Decoder(ExposedPortListBody)


class PortOperations(ExecOperations):
    """The port methods of ``HttpService``."""

    async def connect(self, session_id: str, port: int, *, through: str = "") -> ByteStream:
        path = f"{session_path(session_id)}/ports/{check_port(port)}/connect" + query(through=through or None)
        # Not yet connected, nothing has happened: another route may be tried.
        return await self._calls_to(session_id).on_best_route(
            lambda to: HttpPortStream.open(to, path), repeatable=True
        )

    async def expose_port(self, session_id: str, request: ExposePort) -> Preview:
        """Asks the server itself, not the session's worker: the URL is the server's."""
        body = encode(ExposePortBody.of(request))
        answer = await self._call("PUT", _port_path(session_id, request.port), body, repeatable=True)
        preview: Preview = self._connection.decode(_PREVIEW, answer).to_domain()
        if preview.prefix:
            # The server does not know by which name we reach it, if a proxy stands between.
            return replace(preview, url=self.url + preview.prefix + "/")
        return preview

    async def unexpose_port(self, session_id: str, port: int) -> None:
        path = _port_path(session_id, port)
        await self._calls_to(session_id).call("DELETE", path, repeatable=True)

    async def list_exposed(self, session_id: str) -> Sequence[Exposure]:
        decoded = await self._read(session_id, _EXPOSED, session_path(session_id) + "/ports")
        return [exposure.to_domain() for exposure in decoded.ports]


def _port_path(session_id: str, port: int) -> str:
    return f"{session_path(session_id)}/ports/{check_port(port)}"

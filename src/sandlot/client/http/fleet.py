"""An operator's requests to a fleet, sent to one of its coordinators."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import msgspec

from sandlot.client.http.service import HttpService
from sandlot.client.http.transport.request import query, segment
from sandlot.domain.errors import NotFound, Unsupported
from sandlot.wire.fleet_bodies import EMPTY_BODY, FleetBody, PlacedSessionBody, PlacedSessionsBody

_FLEET: Final = msgspec.json.Decoder(FleetBody)
_PLACED: Final = msgspec.json.Decoder(PlacedSessionsBody)


class FleetOperator(HttpService):
    """``HttpService`` plus the requests that only a fleet's operator makes."""

    async def fleet(self) -> FleetBody:
        fleet: FleetBody = self._connection.decode(_FLEET, await self._request("GET", "/v1/fleet"))
        return fleet

    async def placed_sessions(self, tenant: str | None = None) -> AsyncIterator[PlacedSessionBody]:
        """Iterate over a tenant's sessions with their workers, oldest first, page by page.

        Without ``tenant``, they are the caller's own.
        """
        after: str | None = None
        while True:
            body = await self._request(
                "GET", "/v1/fleet/sessions" + query(tenant=tenant, after=after, limit=1000)
            )
            page: PlacedSessionsBody = self._connection.decode(_PLACED, body)
            for placed in page.sessions:
                yield placed
            if page.next is None:
                return
            after = page.next

    async def set_draining(self, worker_id: str, draining: bool) -> None:
        action = "drain" if draining else "undrain"
        path = f"/v1/fleet/workers/{segment(worker_id)}/{action}"
        await self._request("POST", path, EMPTY_BODY)

    async def _request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        try:
            return await self._call(method, path, body, repeatable=True)
        except NotFound as error:
            raise Unsupported(
                f"{self.url} is a single server, not a fleet coordinator. Pass a coordinator's URL."
            ) from error

"""What an operator asks of a fleet, at one of its coordinators."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from sandlot.client.http.request import encode, query, segment
from sandlot.client.http.service import HttpService
from sandlot.domain.errors import NotFound, Unsupported
from sandlot.wire.fleet_bodies import DrainBody, FleetBody, PlacedSessionBody, PlacedSessionsBody

_FLEET: Final = msgspec.json.Decoder(FleetBody)
_PLACED: Final = msgspec.json.Decoder(PlacedSessionsBody)


class FleetOperator(HttpService):
    async def fleet(self) -> FleetBody:
        fleet: FleetBody = await self._asked("/v1/fleet", _FLEET)
        return fleet

    async def placed_sessions(self) -> AsyncIterator[PlacedSessionBody]:
        """All of them, oldest first, page by page."""
        after: str | None = None
        while True:
            page: PlacedSessionsBody = await self._asked(
                "/v1/fleet/sessions" + query(after=after, limit=1000), _PLACED
            )
            for placed in page.sessions:
                yield placed
            if page.next is None:
                return
            after = page.next

    async def drain(self, worker_id: str) -> None:
        path = f"/v1/fleet/workers/{segment(worker_id)}/drain"
        await self._call("POST", path, encode(DrainBody()), repeatable=True)

    async def _asked(self, path: str, decoder: msgspec.json.Decoder[Any]) -> Any:
        try:
            body = await self._get(path)
        except NotFound as error:
            raise Unsupported(f"{self.url} is one server, not a fleet's coordinator") from error
        return self._connection.decode(decoder, body)

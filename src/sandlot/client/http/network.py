"""The network methods of ``HttpService``."""

from __future__ import annotations

from typing import Final

import msgspec

from sandlot.client.http.calls import ServiceCalls
from sandlot.client.http.paths import session_path
from sandlot.client.http.transport.request import encode
from sandlot.domain.network.status import NetworkChange, NetworkStatus
from sandlot.wire.network_bodies import NetworkBody, NetworkChangeBody

_NETWORK: Final = msgspec.json.Decoder(NetworkBody)


class NetworkOperations(ServiceCalls):
    async def get_network(self, session_id: str) -> NetworkStatus:
        body: NetworkBody = await self._read(session_id, _NETWORK, session_path(session_id) + "/network")
        return body.to_domain()

    async def change_network(self, session_id: str, change: NetworkChange) -> NetworkStatus:
        calls = self._calls_to(session_id)
        body = encode(NetworkChangeBody.of(change))
        # Only some changes are the same twice: to revoke what is revoked is an error.
        repeatable = not change.revoke and not change.unforward
        path = session_path(session_id) + "/network"
        answer = await calls.call("PATCH", path, body, repeatable=repeatable)
        decoded: NetworkBody = calls.decode(_NETWORK, answer)
        return decoded.to_domain()

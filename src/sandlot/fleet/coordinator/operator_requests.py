"""What operators of a fleet ask a coordinator for: its workers, where sessions are, draining."""

from __future__ import annotations

from sandlot.domain.errors import InvalidRequest, SandlotError
from sandlot.fleet.access import AccessTokens
from sandlot.fleet.coordinator.health import fleet_body, placed_body
from sandlot.fleet.coordinator.worker_links import WorkerLinks, as_client_error
from sandlot.fleet.directory.contract import Directory
from sandlot.wire.fleet_bodies import FleetBody, PlacedSessionsBody


class FleetOperations:
    def __init__(self, directory: Directory, links: WorkerLinks, tokens: AccessTokens) -> None:
        self._directory = directory
        self._links = links
        self._tokens = tokens

    async def fleet(self) -> FleetBody:
        return fleet_body(
            await self._directory.status(), await self._directory.workers(), self._tokens.signed_with
        )

    async def placed_sessions(self, tenant: str, *, after: str | None, limit: int) -> PlacedSessionsBody:
        return placed_body(await self._directory.page(tenant, after=after, limit=limit))

    async def set_draining(self, worker_id: str, draining: bool) -> None:
        """Start or stop draining a worker.

        A draining worker takes no new sessions and keeps its own.
        """
        status = next((known for known in await self._directory.workers() if known.ref.id == worker_id), None)
        if status is None:
            raise InvalidRequest(f"Unknown worker {worker_id!r:.80}. Run `sandlot fleet workers` to see all.")
        try:
            await (await self._links.to(status.ref)).set_draining(draining)
        except SandlotError as error:
            raise as_client_error(worker_id, error) from error

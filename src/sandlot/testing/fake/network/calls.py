"""The calls of ``FakeService`` about what a session reaches, and about its ports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sandlot.domain.callers.principal import Principal
from sandlot.domain.computer import ByteStream
from sandlot.domain.errors import NotFound
from sandlot.domain.network.ports import (
    ExposePort,
    Exposure,
    Preview,
    check_port,
    check_room,
    exposed,
    exposure_of,
    new_exposure_id,
    unexposed,
)
from sandlot.domain.network.status import NetworkChange, NetworkStatus
from sandlot.domain.session_states import no_session_error
from sandlot.testing.fake.computer import FakeComputer
from sandlot.testing.fake.history import FakeHistory
from sandlot.testing.fake.network.ports import Server
from sandlot.testing.fake.records import Record


class NetworkCalls:
    """The network and the ports of ``FakeService``."""

    _principal: Principal
    _records: dict[str, Record]
    _history: FakeHistory

    def _record(self, session_id: str) -> Record:
        raise NotImplementedError

    def _touch(self, record: Record) -> None:
        raise NotImplementedError

    def _computer(self, session_id: str, *, starts_work: bool = False) -> FakeComputer:
        raise NotImplementedError

    async def get_network(self, session_id: str) -> NetworkStatus:
        return self._record(session_id).network.status()

    async def change_network(self, session_id: str, change: NetworkChange) -> NetworkStatus:
        record = self._record(session_id)
        record.network.change(change)
        record.session = replace(record.session, network=record.network.egress.own)
        self._touch(record)
        self._history.recorder.network_changed(record.session, change, self._principal)
        return record.network.status()

    def serve_port(self, session_id: str, port: int, server: Server) -> None:
        """For tests: lets ``server`` answer connections to a port of the session's sandbox."""
        computer = self._records[session_id].computer
        assert computer is not None, "the session has no sandbox"
        computer.ports.serve(port, server)

    async def connect(self, session_id: str, port: int, *, through: str = "") -> ByteStream:
        check_port(port)
        computer = self._computer(session_id, starts_work=True)
        if through:
            exposure_of(self._record(session_id).session.exposed, port, through)
        check_room(len(computer.ports), session_id)
        return computer.ports.connect(port, for_visitor=bool(through))

    async def expose_port(self, session_id: str, request: ExposePort) -> Preview:
        record = self._record(session_id)
        exposures = exposed(record.session.exposed, request, new_exposure_id())
        record.session = replace(record.session, exposed=exposures)
        exposure = exposure_of(exposures, request.port)
        self._history.recorder.port_exposed(record.session, exposure, self._principal)
        return Preview(exposure)

    async def unexpose_port(self, session_id: str, port: int) -> None:
        record = self._record(session_id)
        exposures = unexposed(record.session.exposed, port)
        if exposures == record.session.exposed:
            return
        record.session = replace(record.session, exposed=exposures)
        if record.computer is not None:
            record.computer.ports.end(NotFound(f"Port {port} is no longer exposed."), visitors_of=port)
        self._history.recorder.port_unexposed(record.session, port, self._principal)

    async def list_exposed(self, session_id: str) -> Sequence[Exposure]:
        return self._record(session_id).session.exposed

    async def tenant_of(self, session_id: str) -> str:
        record = self._records.get(session_id)
        if record is None:
            raise no_session_error(session_id)
        return record.session.tenant

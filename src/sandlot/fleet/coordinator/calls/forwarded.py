"""Calls that a coordinator forwards to a session's worker as they are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from sandlot.domain.callers.principal import Principal
from sandlot.domain.capacity.usage import SandboxUsage
from sandlot.domain.computer import ByteStream, ExecSummary, Execution, Files, ShellSummary
from sandlot.domain.errors import SandlotError
from sandlot.domain.execution import ExecRequest, ExecResult
from sandlot.domain.files_within import FilesWithin
from sandlot.domain.network.ports import ExposePort, Exposure, Preview
from sandlot.domain.network.status import NetworkChange, NetworkStatus
from sandlot.domain.service import ExecStatus
from sandlot.fleet.coordinator.parts import CoordinatorParts
from sandlot.fleet.coordinator.worker_links import Watch, WorkerLink, unwatched, watched

# Seconds for calls that wait for an engine, a queue or a store: a delete, an update, a recreate, a restore.
ENGINE_CALL_S: Final = 120.0


class ForwardedCalls:
    """The calls of one caller, ``principal``."""

    def __init__(self, principal: Principal, parts: CoordinatorParts) -> None:
        self._principal = principal
        self._tenant = principal.tenant
        self._parts = parts
        self._directory = parts.directory
        self._catalogue = parts.catalogue
        self._options = parts.options
        self._links = parts.links
        self._locations = parts.locations

    # --- execs --------------------------------------------------------------------------------

    async def execute(self, session_id: str, request: ExecRequest, stdin: bytes | None = None) -> ExecResult:
        async with self._worker_for(session_id, within_s=self._options.exec_timeout_s(request)) as worker:
            return await worker.execute(session_id, request, stdin)

    async def start_exec(self, session_id: str, request: ExecRequest, *, offset: int = 0) -> Execution:
        async with self._worker_for(session_id, within_s=self._options.call_timeout_s) as worker:
            return await worker.start_exec(session_id, request, offset=offset)

    async def attach_exec(self, session_id: str, exec_id: str, *, offset: int = 0) -> Execution:
        async with self._worker_for(session_id, within_s=self._options.call_timeout_s) as worker:
            return await worker.attach_exec(session_id, exec_id, offset=offset)

    async def get_exec(self, session_id: str, exec_id: str, *, wait_s: float = 0) -> ExecStatus:
        async with self._worker_for(session_id, within_s=wait_s + self._options.call_timeout_s) as worker:
            return await worker.get_exec(session_id, exec_id, wait_s=wait_s)

    async def list_execs(self, session_id: str) -> Sequence[ExecSummary]:
        async with self._worker_for(session_id, within_s=self._options.call_timeout_s) as worker:
            return await worker.list_execs(session_id)

    async def signal_exec(self, session_id: str, exec_id: str, signal: int) -> int:
        async with self._worker_for(session_id, within_s=self._options.call_timeout_s) as worker:
            return await worker.signal_exec(session_id, exec_id, signal)

    async def kill_exec(self, session_id: str, exec_id: str) -> int:
        async with self._worker_for(session_id, within_s=self._options.call_timeout_s) as worker:
            return await worker.kill_exec(session_id, exec_id)

    async def resize_exec(self, session_id: str, exec_id: str, *, rows: int, cols: int) -> None:
        async with self._worker_for(session_id, within_s=self._options.call_timeout_s) as worker:
            await worker.resize_exec(session_id, exec_id, rows=rows, cols=cols)

    # --- shells and files ---------------------------------------------------------------------

    async def list_shells(self, session_id: str) -> Sequence[ShellSummary]:
        async with self._worker_for(session_id, within_s=self._options.call_timeout_s) as worker:
            return await worker.list_shells(session_id)

    async def close_shell(self, session_id: str, name: str) -> None:
        async with self._worker_for(session_id, within_s=self._options.call_timeout_s) as worker:
            await worker.close_shell(session_id, name)

    def files(self, session_id: str) -> Files:
        @asynccontextmanager
        async def use(watch: Watch = watched) -> AsyncIterator[Files]:
            async with self._worker_for(session_id, watch=watch) as worker:
                yield worker.files(session_id)

        # Streams run unwatched: the client bounds the wait for each piece, and a watch would cancel
        # the task that started the stream.
        return FilesWithin(use, open_stream=partial(use, unwatched))

    async def get_usage(self, session_id: str) -> SandboxUsage:
        async with self._worker_for(session_id, within_s=self._options.call_timeout_s) as worker:
            return await worker.get_usage(session_id)

    # --- network ------------------------------------------------------------------------------

    async def get_network(self, session_id: str) -> NetworkStatus:
        async with self._worker_for(session_id, within_s=self._options.call_timeout_s) as worker:
            return await worker.get_network(session_id)

    async def change_network(self, session_id: str, change: NetworkChange) -> NetworkStatus:
        async with self._worker_for(session_id, within_s=self._options.call_timeout_s) as worker:
            return await worker.change_network(session_id, change)

    # --- ports --------------------------------------------------------------------------------

    async def connect(self, session_id: str, port: int, *, through: str = "") -> ByteStream:
        async with self._worker_for(session_id, within_s=self._options.call_timeout_s) as worker:
            return await worker.connect(session_id, port, through=through)

    async def expose_port(self, session_id: str, request: ExposePort) -> Preview:
        async with self._worker_for(session_id, within_s=self._options.call_timeout_s) as worker:
            return await worker.expose_port(session_id, request)

    async def unexpose_port(self, session_id: str, port: int) -> None:
        async with self._worker_for(session_id, within_s=self._options.call_timeout_s) as worker:
            await worker.unexpose_port(session_id, port)

    async def list_exposed(self, session_id: str) -> Sequence[Exposure]:
        async with self._worker_for(session_id, within_s=self._options.call_timeout_s) as worker:
            return await worker.list_exposed(session_id)

    # --- forwarding ---------------------------------------------------------------------------

    @asynccontextmanager
    async def _worker_for(
        self, session_id: str, *, within_s: float | None = None, watch: Watch = watched
    ) -> AsyncIterator[WorkerLink]:
        """Yield the link to the session's worker, for one call.

        Errors of the call are translated to what they mean for the session.
        """
        worker = await self._locations.worker_of(self._tenant, session_id)
        self._parts.calls += 1
        try:
            link = await self._links.to(worker, self._principal)
            async with watch(link, within_s):
                yield link
        except SandlotError as error:
            explained = await self._locations.explain(self._tenant, session_id, worker, error)
            if explained is error:
                raise
            raise explained from error
        finally:
            self._parts.calls -= 1

"""Execs over HTTP.

The exec id makes retries safe. When the connection of ``execute`` breaks, the client asks for the
result by id. Only if the server does not know the exec does the client send it again, under the
same id. It does not send it again if the session has another sandbox by then: the first sandbox may
have run the command, and its records are gone with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from sandlot.client.http.calls import EXECUTE_READ_S
from sandlot.client.http.paths import exec_path, session_path, thread_path
from sandlot.client.http.retries.creates import Patience
from sandlot.client.http.retries.results import may_be_running, until_result
from sandlot.client.http.retries.rules import OutageLimit, backoff
from sandlot.client.http.routing.sandboxes_seen import SandboxSeen
from sandlot.client.http.sessions import SessionOperations
from sandlot.client.http.streams.event_streams import EventStream, SseEventStream, WebSocketEventStream
from sandlot.client.http.streams.execution import Dial, HttpExecution
from sandlot.client.http.transport.connection import Connection
from sandlot.client.http.transport.request import encode, header, query
from sandlot.domain.computer import ExecSummary, Execution
from sandlot.domain.errors import (
    Busy,
    InvalidRequest,
    LinkInterrupted,
    NotFound,
    SandboxLost,
    SandlotError,
    Unavailable,
)
from sandlot.domain.execution import ExecRequest, ExecResult
from sandlot.domain.service import (
    ExecStatus,
    Opened,
    ThreadRun,
)
from sandlot.domain.session import CreateSession
from sandlot.wire.exec_bodies import (
    ExecBody,
    ExecListBody,
    PtyBody,
    SignalBody,
    SignalledBody,
    ThreadExecBody,
)
from sandlot.wire.http_bodies import CreateSessionBody
from sandlot.wire.packed import RESULT, STATUS, THREAD_RUN

# How long the server may hold one request of a waiting client; after that the client asks again.
# Proxies cut off a silent request after a minute.
WAIT_PIECE_S: Final = 25.0

_EXECS: Final = msgspec.json.Decoder(ExecListBody)
_SIGNALLED: Final = msgspec.json.Decoder(SignalledBody)


class ExecOperations(SessionOperations):
    """The exec methods of ``HttpService``."""

    async def execute(self, session_id: str, request: ExecRequest, stdin: bytes | None = None) -> ExecResult:
        session = session_path(session_id)
        body = encode(ExecBody.of(request, stdin).to_wire())
        before = self._sandboxes.of(session)
        calls = self._calls_to(session_id)

        async def once(connection: Connection) -> ExecResult:
            _, answer = await connection.call_once(
                "POST", session + "/exec", body, read_timeout_s=EXECUTE_READ_S
            )
            result = connection.decode(RESULT, answer)
            self._sandboxes.record(session, SandboxSeen(session_id, result.generation))
            return result

        async def post() -> ExecResult:
            # If the command may have run, do not use another route: ask for it by id first.
            return await calls.on_best_route(once, repeatable=False)

        async def fetch_result() -> ExecResult | None:
            try:
                return _kept_result(await self._status(session_id, request.exec_id, WAIT_PIECE_S))
            except NotFound:
                await self._prove_same_sandbox(session, before, request.exec_id)
                raise

        return await until_result(
            request.exec_id, post, fetch_result, Patience(self._connection, 0), self._max_outage_s
        )

    async def execute_in_thread(
        self, create: CreateSession, request: ExecRequest, stdin: bytes | None = None
    ) -> ThreadRun:
        if create.thread is None:
            raise InvalidRequest("execute_in_thread() needs a thread.")
        thread = thread_path(create.thread)
        before = self._sandboxes.of(thread)
        thread_exec = ThreadExecBody(ExecBody.of(request, stdin), CreateSessionBody.of(create))
        body = encode(thread_exec.to_wire())
        headers = {"Idempotency-Key": header(create.idempotency_key)} if create.idempotency_key else None

        async def post() -> ThreadRun:
            _, answer = await self._connection.call_once(
                "POST", thread + "/exec", body, headers=headers, read_timeout_s=EXECUTE_READ_S
            )
            decoded = self._connection.decode(THREAD_RUN, answer)
            self._record_decoded(decoded.session)
            return decoded.run

        async def fetch_result() -> ThreadRun | None:
            try:
                session = self._session(await self._get(thread))
                result = _kept_result(await self._status(session.id, request.exec_id, WAIT_PIECE_S))
            except NotFound:
                if before is None:
                    await self._prove_first_sandbox(create, request.exec_id)
                else:
                    await self._prove_same_sandbox(thread, before, request.exec_id)
                raise
            return None if result is None else ThreadRun(Opened(session, False), result)

        patience = Patience(self._connection, self._patience_s)
        return await until_result(request.exec_id, post, fetch_result, patience, self._max_outage_s)

    async def _prove_same_sandbox(self, path: str, before: SandboxSeen | None, exec_id: str) -> None:
        """Raise ``SandboxLost`` unless an exec that the server does not know surely never ran.

        It never ran if the session still has the sandbox that would know it.
        """
        try:
            session = self._session(await self._get(path))
        except NotFound:
            same = before is None
        else:
            # Nothing to compare with if none was seen. The first generation replaced none.
            same = session.generation == 1 if before is None else before == SandboxSeen.of(session)
        if not same:
            raise _sandbox_gone(exec_id)

    async def _prove_first_sandbox(self, create: CreateSession, exec_id: str) -> None:
        """Check the same for a thread whose session was not known before.

        Its session may have ended since. Then the next session names it as its predecessor.
        """
        session = (await self.create_session(create)).session
        if session.generation != 1 or session.predecessor is not None:
            raise _sandbox_gone(exec_id)

    async def start_exec(self, session_id: str, request: ExecRequest, *, offset: int = 0) -> Execution:
        session = session_path(session_id)
        body = encode(ExecBody.of(request).to_wire())
        before = self._sandboxes.of(session)
        calls = self._calls_to(session_id)
        sent = False  # whether the command may already run

        async def start(offset: int) -> EventStream:
            nonlocal sent
            try:
                if sent:
                    try:
                        return await attach(offset)
                    except NotFound:
                        await self._prove_same_sandbox(session, before, request.exec_id)
                path = session + "/exec" + query(offset=offset)
                stream = await calls.on_best_route(
                    lambda to: SseEventStream.open(to, "POST", path, body), repeatable=False
                )
            except SandlotError as error:
                sent = error.may_have_executed = sent or error.may_have_executed
                raise
            sent = True
            return stream

        async def attach(offset: int) -> EventStream:
            path = exec_path(session_id, request.exec_id) + query(offset=offset)
            return await calls.on_best_route(lambda to: SseEventStream.open(to, "GET", path), repeatable=True)

        redial = self._redial(session_id, attach)
        outage_limit = OutageLimit(self._max_outage_s)
        execution = HttpExecution(
            session_id, request.exec_id, redial, calls.reroute_after, offset, self._executions, outage_limit
        )
        await execution.open(start)
        if not request.stdin and request.pty is None:
            return execution
        # Input needs a WebSocket. Until it is open, the first stream keeps the output: without a
        # limit, output that has no reader is dropped.
        try:
            attached = await self.attach_exec(session_id, request.exec_id, offset=offset)
        except BaseException as error:
            await execution.detach()
            if isinstance(error, SandlotError):
                error.may_have_executed = True
            raise
        if request.output_limit is None:
            attached.fill_gaps_from(execution)
        else:
            await execution.detach()
        return attached

    async def attach_exec(self, session_id: str, exec_id: str, *, offset: int = 0) -> HttpExecution:
        if offset < 0:
            raise InvalidRequest("offset must not be negative.")
        calls = self._calls_to(session_id)

        async def attach(offset: int) -> EventStream:
            path = exec_path(session_id, exec_id) + "/attach" + query(offset=offset)
            return await calls.on_best_route(lambda to: WebSocketEventStream.open(to, path), repeatable=True)

        redial = self._redial(session_id, attach)
        outage_limit = OutageLimit(self._max_outage_s)
        execution = HttpExecution(
            session_id, exec_id, redial, calls.reroute_after, offset, self._executions, outage_limit
        )
        await execution.open(attach)
        return execution

    def _redial(self, session_id: str, attach: Dial) -> Dial:
        """Return the function that reconnects a reader after a break; subclasses may wrap it."""
        return attach

    async def get_exec(self, session_id: str, exec_id: str, *, wait_s: float = 0) -> ExecStatus:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        waits, outage_limit = wait_s > 0 and self._max_outage_s > 0, OutageLimit(self._max_outage_s)
        while True:
            left = max(0.0, deadline - loop.time())
            try:
                status = await self._status(session_id, exec_id, min(left, WAIT_PIECE_S))
            except (LinkInterrupted, Unavailable, Busy) as error:
                if not waits:
                    raise
                # A caller that waits for the end also waits for an unreachable server.
                exceeded, pause = outage_limit.exceeded(error), backoff(outage_limit.breaks + 2)
                if exceeded or loop.time() + pause > deadline:
                    raise may_be_running(exec_id, error) from error
                await asyncio.sleep(pause)
                continue
            outage_limit.reset()
            if not status.running or left <= WAIT_PIECE_S:
                return status

    async def _status(self, session_id: str, exec_id: str, wait_s: float) -> ExecStatus:
        path = exec_path(session_id, exec_id) + query(wait_s=round(wait_s, 3) or None)
        return await self._read(session_id, STATUS, path)

    async def list_execs(self, session_id: str) -> Sequence[ExecSummary]:
        decoded = await self._read(session_id, _EXECS, session_path(session_id) + "/execs")
        execs: list[ExecSummary] = decoded.execs
        return execs

    async def signal_exec(self, session_id: str, exec_id: str, signal: int) -> int:
        body = encode(SignalBody(signal))
        calls, path = self._calls_to(session_id), exec_path(session_id, exec_id) + "/signal"
        answer = await calls.call("POST", path, body, repeatable=False)
        processes: int = calls.decode(_SIGNALLED, answer).processes
        return processes

    async def kill_exec(self, session_id: str, exec_id: str) -> int:
        calls = self._calls_to(session_id)
        answer = await calls.call("DELETE", exec_path(session_id, exec_id), repeatable=True)
        processes: int = calls.decode(_SIGNALLED, answer).processes
        return processes

    async def resize_exec(self, session_id: str, exec_id: str, *, rows: int, cols: int) -> None:
        body = encode(PtyBody(rows, cols))
        path = exec_path(session_id, exec_id) + "/resize"
        await self._calls_to(session_id).call("POST", path, body, repeatable=True)


def _sandbox_gone(exec_id: str) -> SandboxLost:
    return SandboxLost(
        f"The connection broke, and the sandbox that received exec {exec_id} may be gone. The command "
        "may have run there. Sandlot does not run it again in another sandbox.",
        details={"exec_id": exec_id},
        may_have_executed=True,
    )


def _kept_result(status: ExecStatus) -> ExecResult | None:
    if not status.running and status.result is None:
        raise SandlotError(
            f"Exec {status.exec_id} has ended, and the sandbox no longer keeps its result.",
            may_have_executed=True,
        )
    return status.result

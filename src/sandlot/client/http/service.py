"""``HttpService``: the ``SandboxService`` contract, by calling a server.

An exec's id makes it safe to ask again: when the connection of ``execute`` breaks, the result is asked for by
id, and only a server that does not know the exec is given it once more, under the same id; but not if the
session has another sandbox by then, since the first may have run it and taken the knowledge with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Sequence
from typing import Final, TypeVar

import anyio
import msgspec

from sandlot.client.http.connection import ApiKey, Connection, Decoder
from sandlot.client.http.execution import Dial, HttpExecution
from sandlot.client.http.files import HttpFiles
from sandlot.client.http.lines import EventStreamLine, Line, WebSocketLine
from sandlot.client.http.opening import Waiting, until_open
from sandlot.client.http.pools import on_loop
from sandlot.client.http.request import encode, header, query, segment
from sandlot.client.http.retries import AWAY_S, Patience, backoff
from sandlot.client.http.sandboxes_seen import SandboxesSeen, SandboxSeen
from sandlot.client.http.session_way import SessionWay
from sandlot.client.http.until_result import may_be_running, until_result
from sandlot.client.http.ways import Ways
from sandlot.client.options import PATIENCE_S
from sandlot.domain.computer import ExecSummary, Execution, Files, ShellSummary
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
    Access,
    Catalogue,
    ExecStatus,
    Opened,
    ServiceHealth,
    SessionPage,
    ThreadRun,
)
from sandlot.domain.session import CreateSession, Session, SessionChange
from sandlot.wire.exec_bodies import (
    ExecBody,
    ExecListBody,
    PtyBody,
    ShellListBody,
    SignalBody,
    SignalledBody,
    ThreadExecBody,
)
from sandlot.wire.http_bodies import CreateSessionBody, SessionBody, SessionChangeBody, SessionPageBody
from sandlot.wire.packed import RESULT, STATUS, THREAD_RUN

# How long one request of a waiting client is held; what takes longer is asked for again. Proxies cut off a
# silent request after a minute.
WAIT_PIECE_S: Final = 25.0
# Until a silent ``execute`` is asked about by its id.
EXECUTE_READ_S: Final = 90.0

# A caller that was cancelled in a create is held up no longer than this: as long as a busy engine takes.
UNDO_WITHIN_S: Final = 30.0

_SESSION: Final = msgspec.json.Decoder(SessionBody)
_SESSIONS: Final = msgspec.json.Decoder(SessionPageBody)
_EXECS: Final = msgspec.json.Decoder(ExecListBody)
_SHELLS: Final = msgspec.json.Decoder(ShellListBody)
_SIGNALLED: Final = msgspec.json.Decoder(SignalledBody)
_CATALOGUE: Final = msgspec.json.Decoder(Catalogue)
_HEALTH: Final = msgspec.json.Decoder(ServiceHealth)

T = TypeVar("T")


class HttpService:
    """Implements ``SandboxService``."""

    def __init__(
        self,
        url: str,
        api_key: ApiKey = None,
        *,
        direct: bool = True,
        connection: Connection | None = None,
        away_s: float = AWAY_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """``direct``: a session's calls go straight to its worker where the server says how (``ways.py``).
        ``connection``: one that was made already, instead of one by ``url`` and ``api_key``.
        ``away_s``: for so long a server may be away while a command of ours may be running on it.
        ``patience_s``: for so long a create or a thread waits for a server that heals (``opening.py``).
        """
        self._connection = connection or Connection(url, api_key)
        self._direct = direct
        self._away_s = away_s
        self._patience_s = patience_s
        self._ways = Ways(self._connection, self._ask_access)
        self._executions: set[HttpExecution] = set()
        self._sandboxes = SandboxesSeen()

    @property
    def url(self) -> str:
        return self._connection.url

    # sessions

    async def create_session(self, request: CreateSession) -> Opened:
        if request.idempotency_key is not None or request.thread is not None:
            key = request.idempotency_key or secrets.token_hex(16)
            return await self._create(request, key, self._patience_s)
        key = secrets.token_hex(16)
        try:
            return await self._create(request, key, self._patience_s)
        except asyncio.CancelledError:
            # It may have been made all the same. Nobody else has the key, so it would be nobody's.
            with anyio.move_on_after(UNDO_WITHIN_S, shield=True), contextlib.suppress(SandlotError):
                await self.delete_session((await self._create(request, key, 0)).session.id)
            raise

    async def _create(self, request: CreateSession, key: str, patience_s: float) -> Opened:
        encoded, headers = encode(CreateSessionBody.of(request).sent()), {"Idempotency-Key": header(key)}

        async def post() -> tuple[int, bytes]:
            return await self._connection.call_once(
                "POST", "/v1/sessions", encoded, headers=headers, read_timeout_s=EXECUTE_READ_S
            )

        status, body = await until_open(post, Waiting(self._connection, patience_s))
        return Opened(self._session(body), status == 201)

    async def get_session(self, session_id: str) -> Session:
        return self._session(await self._get(_session_path(session_id)))

    async def list_sessions(
        self, *, thread: str | None = None, after: str | None = None, limit: int = 100
    ) -> SessionPage:
        path = "/v1/sessions" + query(thread=thread, after=after, limit=limit)
        page: SessionPage = self._connection.decode(_SESSIONS, await self._get(path)).to_domain()
        for session in page.sessions:
            self._saw(session)
        return page

    async def update_session(self, session_id: str, change: SessionChange) -> Session:
        body = encode(SessionChangeBody.of(change))
        path = _session_path(session_id)
        return self._session(await self._way(session_id).call("PATCH", path, body, repeatable=True))

    async def recreate_session(self, session_id: str) -> Session:
        path = _session_path(session_id) + "/recreate"
        return self._session(await self._call("POST", path, repeatable=False))

    async def delete_session(self, session_id: str) -> None:
        await self._way(session_id).call("DELETE", _session_path(session_id), repeatable=True)
        self._ways.forget(session_id)

    # execs

    async def execute(self, session_id: str, request: ExecRequest, stdin: bytes | None = None) -> ExecResult:
        session = _session_path(session_id)
        body = encode(ExecBody.of(request, stdin).sent())
        before = self._sandboxes.of(session)
        way = self._way(session_id)

        async def once(connection: Connection) -> ExecResult:
            _, answer = await connection.call_once(
                "POST", session + "/exec", body, read_timeout_s=EXECUTE_READ_S
            )
            result = connection.decode(RESULT, answer)
            self._sandboxes.saw(session, SandboxSeen(session_id, result.generation))
            return result

        async def post() -> ExecResult:
            # Not on another way if it may have run: first it is asked for by its id.
            return await way.through(once, repeatable=False)

        async def ask() -> ExecResult | None:
            try:
                return _kept(await self._status(session_id, request.exec_id, WAIT_PIECE_S))
            except NotFound:
                await self._prove_same_sandbox(session, before, request.exec_id)
                raise

        return await until_result(request.exec_id, post, ask, Waiting(self._connection, 0), self._away_s)

    async def execute_in_thread(
        self, create: CreateSession, request: ExecRequest, stdin: bytes | None = None
    ) -> ThreadRun:
        if create.thread is None:
            raise InvalidRequest("execute_in_thread needs a thread")
        thread = _thread_path(create.thread)
        before = self._sandboxes.of(thread)
        asked = ThreadExecBody(ExecBody.of(request, stdin), CreateSessionBody.of(create))
        body = encode(asked.sent())
        headers = {"Idempotency-Key": header(create.idempotency_key)} if create.idempotency_key else None

        async def post() -> ThreadRun:
            _, answer = await self._connection.call_once(
                "POST", thread + "/exec", body, headers=headers, read_timeout_s=EXECUTE_READ_S
            )
            told = self._connection.decode(THREAD_RUN, answer)
            self._saw_told(told.session)
            return told.run

        async def ask() -> ThreadRun | None:
            try:
                session = self._session(await self._get(thread))
                result = _kept(await self._status(session.id, request.exec_id, WAIT_PIECE_S))
            except NotFound:
                if before is None:
                    await self._prove_first_sandbox(create, request.exec_id)
                else:
                    await self._prove_same_sandbox(thread, before, request.exec_id)
                raise
            return None if result is None else ThreadRun(Opened(session, False), result)

        waiting = Waiting(self._connection, self._patience_s)
        return await until_result(request.exec_id, post, ask, waiting, self._away_s)

    async def _prove_same_sandbox(self, path: str, before: SandboxSeen | None, exec_id: str) -> None:
        """An exec that is not known never ran, if the sandbox that would know it is still the session's."""
        try:
            session = self._session(await self._get(path))
        except NotFound:
            same = before is None
        else:
            # One of which nothing was heard before cannot be compared; the first generation is never another.
            same = session.generation == 1 if before is None else before == SandboxSeen.of(session)
        if not same:
            raise _gone_since(exec_id)

    async def _prove_first_sandbox(self, create: CreateSession, exec_id: str) -> None:
        """The same for a thread of which nothing was heard before: its session may have ended since, and then
        the next one knows of it.
        """
        session = (await self.create_session(create)).session
        if session.generation != 1 or session.predecessor is not None:
            raise _gone_since(exec_id)

    async def start_exec(self, session_id: str, request: ExecRequest, *, offset: int = 0) -> Execution:
        session = _session_path(session_id)
        body = encode(ExecBody.of(request).sent())
        before = self._sandboxes.of(session)
        way = self._way(session_id)
        sent = False  # whether it may run already

        async def start(offset: int) -> Line:
            nonlocal sent
            try:
                if sent:
                    try:
                        return await attach(offset)
                    except NotFound:
                        await self._prove_same_sandbox(session, before, request.exec_id)
                asked = session + "/exec" + query(offset=offset)
                line = await way.through(
                    lambda to: EventStreamLine.open(to, "POST", asked, body), repeatable=False
                )
            except SandlotError as error:
                sent = error.may_have_executed = sent or error.may_have_executed
                raise
            sent = True
            return line

        async def attach(offset: int) -> Line:
            again = _exec_path(session_id, request.exec_id) + query(offset=offset)
            return await way.through(lambda to: EventStreamLine.open(to, "GET", again), repeatable=True)

        redial = self._redial(session_id, attach)
        patience = Patience(self._away_s)
        execution = HttpExecution(
            session_id, request.exec_id, redial, way.turn, offset, self._executions, patience
        )
        await execution.open(start)
        if not request.stdin and request.pty is None:
            return execution
        # Input needs a WebSocket. The first line holds the output until that is there: without a limit,
        # what nobody reads is dropped.
        try:
            attached = await self.attach_exec(session_id, request.exec_id, offset=offset)
        except BaseException as error:
            await execution.detach()
            if isinstance(error, SandlotError):
                error.may_have_executed = True
            raise
        if request.output_limit is None:
            attached.follow(execution)
        else:
            await execution.detach()
        return attached

    async def attach_exec(self, session_id: str, exec_id: str, *, offset: int = 0) -> HttpExecution:
        if offset < 0:
            raise InvalidRequest("an offset must not be negative")
        way = self._way(session_id)

        async def attach(offset: int) -> Line:
            path = _exec_path(session_id, exec_id) + "/attach" + query(offset=offset)
            return await way.through(lambda to: WebSocketLine.open(to, path), repeatable=True)

        redial = self._redial(session_id, attach)
        patience = Patience(self._away_s)
        execution = HttpExecution(session_id, exec_id, redial, way.turn, offset, self._executions, patience)
        await execution.open(attach)
        return execution

    def _redial(self, session_id: str, attach: Dial) -> Dial:
        """How a reader comes back to an exec after a break."""
        return attach

    async def get_exec(self, session_id: str, exec_id: str, *, wait_s: float = 0) -> ExecStatus:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        waits, patience = wait_s > 0 and self._away_s > 0, Patience(self._away_s)
        while True:
            left = max(0.0, deadline - loop.time())
            try:
                status = await self._status(session_id, exec_id, min(left, WAIT_PIECE_S))
            except (LinkInterrupted, Unavailable, Busy) as error:
                if not waits:
                    raise
                # Who waits for an end waits for a server that is away, too.
                over, pause = patience.over(error), backoff(patience.breaks + 2)
                if over or loop.time() + pause > deadline:
                    raise may_be_running(exec_id, error) from error
                await asyncio.sleep(pause)
                continue
            patience.renew()
            if not status.running or left <= WAIT_PIECE_S:
                return status

    async def _status(self, session_id: str, exec_id: str, wait_s: float) -> ExecStatus:
        path = _exec_path(session_id, exec_id) + query(wait_s=round(wait_s, 3) or None)
        return await self._read(session_id, STATUS, path)

    async def list_execs(self, session_id: str) -> Sequence[ExecSummary]:
        told = await self._read(session_id, _EXECS, _session_path(session_id) + "/execs")
        execs: list[ExecSummary] = told.execs
        return execs

    async def signal_exec(self, session_id: str, exec_id: str, signal: int) -> int:
        body = encode(SignalBody(signal))
        way, path = self._way(session_id), _exec_path(session_id, exec_id) + "/signal"
        answer = await way.call("POST", path, body, repeatable=False)
        processes: int = way.decode(_SIGNALLED, answer).processes
        return processes

    async def kill_exec(self, session_id: str, exec_id: str) -> int:
        way = self._way(session_id)
        answer = await way.call("DELETE", _exec_path(session_id, exec_id), repeatable=True)
        processes: int = way.decode(_SIGNALLED, answer).processes
        return processes

    async def resize_exec(self, session_id: str, exec_id: str, *, rows: int, cols: int) -> None:
        body = encode(PtyBody(rows, cols))
        path = _exec_path(session_id, exec_id) + "/resize"
        await self._way(session_id).call("POST", path, body, repeatable=True)

    # shells and files

    async def list_shells(self, session_id: str) -> Sequence[ShellSummary]:
        told = await self._read(session_id, _SHELLS, _session_path(session_id) + "/shells")
        shells: list[ShellSummary] = told.shells
        return shells

    async def close_shell(self, session_id: str, name: str) -> None:
        path = f"{_session_path(session_id)}/shells/{segment(name)}"
        await self._way(session_id).call("DELETE", path, repeatable=True)

    def files(self, session_id: str) -> Files:
        return HttpFiles(self._way(session_id), _session_path(session_id) + "/files")

    # the service itself

    async def catalogue(self) -> Catalogue:
        catalogue: Catalogue = self._connection.decode(_CATALOGUE, await self._get("/v1/catalogue"))
        return catalogue

    async def health(self) -> ServiceHealth:
        health: ServiceHealth = self._connection.decode(_HEALTH, await self._get("/v1/health"))
        return health

    async def close(self) -> None:
        for execution in list(self._executions):
            await on_loop(execution.loop, execution.detach)
        await self._ways.close()
        await self._connection.close()

    # one call

    async def _get(self, path: str) -> bytes:
        return await self._call("GET", path, repeatable=True)

    async def _call(self, method: str, path: str, body: bytes | None = None, *, repeatable: bool) -> bytes:
        _, answer = await self._connection.call(method, path, body, repeatable=repeatable)
        return answer

    def _way(self, session_id: str) -> SessionWay:
        return SessionWay(self._ways, session_id)

    async def _read(self, session_id: str, decoder: Decoder[T], path: str) -> T:
        way = self._way(session_id)
        told: T = way.decode(decoder, await way.call("GET", path, repeatable=True))
        return told

    def _session(self, body: bytes) -> Session:
        told: SessionBody = self._connection.decode(_SESSION, body)
        return self._saw_told(told)

    async def _ask_access(self, session_id: str) -> Access | None:
        _, body = await self._connection.call_once("GET", _session_path(session_id))
        told: SessionBody = self._connection.decode(_SESSION, body)
        self._saw_told(told)
        return told.access

    def _saw_told(self, told: SessionBody) -> Session:
        session = told.to_domain()
        self._saw(session)
        if told.access is not None and self._direct:
            self._ways.saw(session.id, told.access)
        return session

    def _saw(self, session: Session) -> None:
        sandbox = SandboxSeen.of(session)
        self._sandboxes.saw(_session_path(session.id), sandbox)
        if session.thread is not None:
            self._sandboxes.saw(_thread_path(session.thread), sandbox)


def _gone_since(exec_id: str) -> SandboxLost:
    return SandboxLost(
        f"the connection broke, and the sandbox that was given exec {exec_id} may be gone since; it may have"
        " run there, and is not run again in another",
        details={"exec_id": exec_id},
        may_have_executed=True,
    )


def _kept(status: ExecStatus) -> ExecResult | None:
    if not status.running and status.result is None:
        raise SandlotError(
            f"exec {status.exec_id} has ended, and its result is not kept any more", may_have_executed=True
        )
    return status.result


def _thread_path(thread: str) -> str:
    return "/v1/threads/" + segment(thread)


def _session_path(session_id: str) -> str:
    return "/v1/sessions/" + segment(session_id)


def _exec_path(session_id: str, exec_id: str) -> str:
    return f"/v1/sessions/{segment(session_id)}/execs/{segment(exec_id)}"

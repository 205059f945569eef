"""The load: clients that create, run, repeat, read back, delete and list.

They record every request and every answer. Each command appends its id to a log inside the sandbox
and prints its line number there, so the sandbox itself shows what ran. With one of ``SEEDED_BUGS``
a client does something other than it records, and the checker must find that.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from bench.chaos.answers import (
    error_event,
    opened_fields,
    result_fields,
    session_fields,
    to_listed,
    unexpected_event,
)
from bench.chaos.history import LOG, Event, Listed, Recorder
from sandlot.domain.errors import FileProblem, NotFound, SandboxLost, SandlotError
from sandlot.domain.execution import ExecRequest, ExecResult
from sandlot.domain.service import Opened, SandboxService, ThreadRun
from sandlot.domain.session import CreateSession, Session, SessionState

# Deadline of every operation. The longest fault lasts a third of it.
DEADLINE_S = 60.0
OWN_THREADS = 2
SHARED_THREADS = 4
MAX_THREADLESS = 1
TRIES = 4
SEEDED_BUGS = ("double-run", "lost-ack", "two-sandboxes")

T = TypeVar("T")


@dataclass(slots=True)
class KnownSession:
    """A session that this client knows.

    ``shared``: other clients may replace its sandbox. A repeated exec could then reach the new
    sandbox and rightly run there, so the client repeats nothing.
    """

    id: str
    thread: str | None
    shared: bool
    lost: bool = False


class ChaosClient:
    """One client of the load. ``services`` has one service for each coordinator's name.

    Each operation goes to a random one of them.
    """

    def __init__(
        self,
        number: int,
        services: Mapping[str, SandboxService],
        recorder: Recorder,
        clock: Callable[[], float],
        *,
        seed: int,
        bug: str | None = None,
        pace_s: float = 0.25,
    ) -> None:
        self._number = number
        self._services = services
        self._recorder = recorder
        self._clock = clock
        self._random = random.Random(f"{seed}-{number}")
        self._bug = bug
        self._pace_s = pace_s
        self._commands = 0
        self._known: dict[str, KnownSession] = {}
        self._threads = [f"own-{number}-{n}" for n in range(OWN_THREADS)]
        self._threads += [f"shared-{n}" for n in range(SHARED_THREADS)]

    async def work(self, until: Callable[[], bool]) -> None:
        steps: list[tuple[int, Callable[[], Awaitable[object]]]] = [
            (4, self._open_thread),
            (1, self._open_without_thread),
            (12, self._on_known_session(self._run_and_repeat)),
            (2, self._on_known_session(self._burst)),
            (3, self._on_known_session(self.read)),
            (2, self._run_in_thread),
            (1, self._on_known_session(self._delete)),
            (1, self.list),
        ]
        weights, calls = zip(*steps, strict=True)
        while not until():
            for known in [known for known in self._known.values() if known.lost]:
                await self._after_a_loss(known)
            await self._random.choices(calls, weights)[0]()
            await asyncio.sleep(self._random.uniform(0, 2 * self._pace_s))

    def _on_known_session(
        self, step: Callable[[KnownSession], Awaitable[object]]
    ) -> Callable[[], Awaitable[object]]:
        async def call() -> object:
            ready = [known for known in self._known.values() if not known.lost]
            return await (step(self._random.choice(ready)) if ready else self._open_thread())

        return call

    # sessions

    async def _open_thread(self) -> None:
        await self._create(self._random.choice(self._threads))

    async def _open_without_thread(self) -> None:
        if sum(known.thread is None for known in self._known.values()) < MAX_THREADLESS:
            await self._create(None)

    async def _create(self, thread: str | None, *, replaces: bool = False) -> None:
        tag = f"c-{self._number}-{self._recorder.next_number()}"
        requested = thread
        if self._bug == "two-sandboxes" and thread is not None and self._random.random() < 0.3:
            requested = f"{thread}-twin"
        request = CreateSession(thread=requested, metadata={"tag": tag}, recreate_lost=replaces)
        opened = await self._do(
            "create",
            lambda service: service.create_session(request),
            opened_fields,
            thread=thread,
            tag=tag,
            replaces=replaces,
        )
        if isinstance(opened, Opened):
            self._remember(opened.session, thread)

    def _remember(self, session: Session, thread: str | None) -> None:
        shared = thread is not None and thread.startswith("shared-")
        lost = session.state is SessionState.LOST
        self._known[session.id] = KnownSession(session.id, thread, shared, lost)

    async def _after_a_loss(self, known: KnownSession) -> None:
        choice = self._random.random()
        if choice < 0.2:
            await self._delete(known)
        elif choice < 0.5 and known.thread is not None:
            await self._create(known.thread, replaces=True)
        else:
            session = await self._do(
                "recreate",
                lambda service: service.recreate_session(known.id),
                session_fields,
                session=known.id,
                thread=known.thread,
                replaces=True,
            )
            if isinstance(session, Session):
                self._remember(session, known.thread)
            else:
                await self.get(known)
        await asyncio.sleep(self._pace_s)

    async def get(self, known: KnownSession) -> Session | Exception:
        session = await self._do(
            "get",
            lambda service: service.get_session(known.id),
            session_fields,
            session=known.id,
            thread=known.thread,
        )
        if isinstance(session, Session):
            self._remember(session, known.thread)
        else:
            self._handle_error(known, session)
        return session

    async def _delete(self, known: KnownSession) -> None:
        answer = await self._do(
            "delete", lambda service: service.delete_session(known.id), lambda _: {}, session=known.id
        )
        if not isinstance(answer, Exception) or isinstance(answer, NotFound):
            self._known.pop(known.id, None)

    async def list(self) -> tuple[Listed, ...]:
        async def everything(service: SandboxService) -> tuple[Listed, ...]:
            found: tuple[Listed, ...] = ()
            after: str | None = None
            while True:
                page = await service.list_sessions(after=after)
                found += tuple(to_listed(session) for session in page.sessions)
                if page.next is None:
                    return found
                after = page.next

        answer = await self._do("list", everything, lambda rows: {"sessions": rows})
        return () if isinstance(answer, Exception) else answer

    # commands

    async def _run_and_repeat(self, known: KnownSession) -> None:
        exec_id = self._new_exec()
        for number in range(TRIES):
            answer = await self._run(known, exec_id)
            if known.shared or known.lost or known.id not in self._known:
                return
            if not isinstance(answer, Exception):
                if number or self._random.random() < 0.8:
                    return
            elif self._random.random() < 0.2:
                return
            await asyncio.sleep(self._random.uniform(0, self._pace_s))

    async def _burst(self, known: KnownSession) -> None:
        await asyncio.gather(*(self._run(known, self._new_exec()) for _ in range(3)))

    def _new_exec(self) -> str:
        self._commands += 1
        return f"x-{self._number}-{self._commands}"

    async def _run(self, known: KnownSession, exec_id: str) -> object:
        request = append_request(exec_id)

        async def send(service: SandboxService) -> ExecResult:
            lie = self._random.random() < 0.3
            if self._bug == "lost-ack" and lie:
                return await service.execute(known.id, ExecRequest(command=f"echo 1:{exec_id}"))
            result = await service.execute(known.id, request)
            if self._bug == "double-run" and lie:
                await service.execute(known.id, ExecRequest(command=request.command))
            return result

        answer = await self._do("run", send, result_fields, session=known.id, exec=exec_id)
        if isinstance(answer, Exception):
            self._handle_error(known, answer)
        return answer

    async def _run_in_thread(self) -> None:
        thread = self._random.choice(self._threads)
        exec_id = self._new_exec()
        create = CreateSession(thread=thread)
        request = append_request(exec_id)

        def fields(ran: ThreadRun) -> dict[str, Any]:
            return session_fields(ran.opened.session) | result_fields(ran.result)

        answer = await self._do(
            "run",
            lambda service: service.execute_in_thread(create, request),
            fields,
            thread=thread,
            exec=exec_id,
        )
        if isinstance(answer, ThreadRun):
            self._remember(answer.opened.session, thread)
        elif isinstance(answer, SandboxLost):
            await self._create(thread)

    async def read(self, known: KnownSession) -> None:
        """Reads the log back, by a command or as a file."""

        async def by_command(service: SandboxService) -> tuple[int, bytes]:
            result = await service.execute(known.id, ExecRequest(command=f"cat {LOG} 2>/dev/null; true"))
            return result.generation, result.stdout

        async def as_file(service: SandboxService) -> tuple[int, bytes]:
            # A file does not say which sandbox it comes from. It is this one if the session had the
            # same generation before and after the read.
            while True:
                generation = (await service.get_session(known.id)).generation
                content = b""
                try:
                    content = await service.files(known.id).read_bytes(LOG)
                except FileProblem as problem:
                    if problem.reason != "not_found":
                        raise
                if (await service.get_session(known.id)).generation == generation:
                    return generation, content

        def fields(answer: tuple[int, bytes]) -> dict[str, Any]:
            return {"generation": answer[0], "lines": tuple(answer[1].decode().split())}

        read_log = self._random.choice([by_command, by_command, as_file])
        answer = await self._do("read", read_log, fields, session=known.id)
        if isinstance(answer, Exception):
            self._handle_error(known, answer)

    # one operation

    def _handle_error(self, known: KnownSession, error: Exception) -> None:
        """Updates the known sessions after an error."""
        if isinstance(error, NotFound):
            self._known.pop(known.id, None)
        elif isinstance(error, SandboxLost):
            known.lost = True

    async def _do(
        self,
        do: str,
        work: Callable[[SandboxService], Awaitable[T]],
        fields: Callable[[T], dict[str, Any]],
        **call: Any,
    ) -> T | Exception:
        number = self._recorder.next_number()
        via = self._random.choice(list(self._services))
        self._recorder.add(
            Event(
                "invoke",
                self._clock(),
                op=number,
                client=self._number,
                do=do,
                via=via,
                deadline_s=DEADLINE_S,
                **call,
            )
        )
        try:
            # A little longer than the deadline, so that the history shows late answers.
            async with asyncio.timeout(DEADLINE_S + 5):
                answer = await work(self._services[via])
            answer_fields = fields(answer)
        except SandlotError as error:
            self._recorder.add(error_event(number, self._clock(), error))
            return error
        except TimeoutError as error:
            self._recorder.add(unexpected_event(number, self._clock(), "deadline", "no answer"))
            return error
        except Exception as error:  # noqa: BLE001  # the checker judges it
            self._recorder.add(unexpected_event(number, self._clock(), "unforeseen", repr(error)))
            return error
        self._recorder.add(Event("ok", self._clock(), op=number, **answer_fields))
        return answer


def append_request(exec_id: str) -> ExecRequest:
    """Builds the command of an exec id. Its pause derives from the id, so a repeat is identical."""
    rng = random.Random(exec_id)
    pause = rng.choice(["", "", "", "", "sleep 0.3; ", "sleep 2; "])
    before, after = rng.sample([pause, ""], 2)
    command = f"{before}echo {exec_id} >> {LOG}; {after}grep -nx {exec_id} < {LOG}"
    return ExecRequest(command=command, exec_id=exec_id)

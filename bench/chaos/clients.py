"""The load: clients that create, run, ask again, read back, delete and list, and write down what they asked and
what they were told.

Each command appends its id to a log inside and prints where it stands there, so that the sandbox itself tells what
was run. ``SEEDED_BUGS`` make a client lie about what it did: the checker must find each of them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from bench.chaos.answers import error_event, listed_of, of_opened, of_result, of_session, unforeseen_event
from bench.chaos.history import Event, Listed, Recorder
from sandlot.domain.errors import FileProblem, NotFound, SandboxLost, SandlotError
from sandlot.domain.execution import ExecRequest, ExecResult
from sandlot.domain.service import Opened, SandboxService, ThreadRun
from sandlot.domain.session import CreateSession, Session, SessionState

# Of every operation; the longest fault lasts a third of it.
DEADLINE_S = 60.0
OWN_THREADS = 2
SHARED_THREADS = 4
THREADLESS = 1
TRIES = 4
SEEDED_BUGS = ("double-run", "lost-ack", "two-sandboxes")

T = TypeVar("T")


@dataclass(slots=True)
class Held:
    """A session that this client was given. ``shared``: others may replace its sandbox, so that an exec that was
    asked for again could meet another one and rightly run there: nothing is asked twice.
    """

    id: str
    thread: str | None
    shared: bool
    lost: bool = False


class ChaosClient:
    """``services``: by the name of the coordinator. Each operation goes to any of them."""

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
        self._held: dict[str, Held] = {}
        self._threads = [f"own-{number}-{n}" for n in range(OWN_THREADS)]
        self._threads += [f"shared-{n}" for n in range(SHARED_THREADS)]

    async def work(self, until: Callable[[], bool]) -> None:
        steps: list[tuple[int, Callable[[], Awaitable[object]]]] = [
            (4, self._open_thread),
            (1, self._open_without_thread),
            (12, self._on_one(self._run_and_ask_again)),
            (2, self._on_one(self._burst)),
            (3, self._on_one(self.read)),
            (2, self._run_in_thread),
            (1, self._on_one(self._delete)),
            (1, self.list),
        ]
        weights, calls = zip(*steps, strict=True)
        while not until():
            for held in [held for held in self._held.values() if held.lost]:
                await self._after_a_loss(held)
            await self._random.choices(calls, weights)[0]()
            await asyncio.sleep(self._random.uniform(0, 2 * self._pace_s))

    def _on_one(self, step: Callable[[Held], Awaitable[object]]) -> Callable[[], Awaitable[object]]:
        async def call() -> object:
            ready = [held for held in self._held.values() if not held.lost]
            return await (step(self._random.choice(ready)) if ready else self._open_thread())

        return call

    # sessions

    async def _open_thread(self) -> None:
        await self._create(self._random.choice(self._threads))

    async def _open_without_thread(self) -> None:
        if sum(held.thread is None for held in self._held.values()) < THREADLESS:
            await self._create(None)

    async def _create(self, thread: str | None, *, replaces: bool = False) -> None:
        tag = f"c-{self._number}-{self._recorder.number()}"
        asked = thread
        if self._bug == "two-sandboxes" and thread is not None and self._random.random() < 0.3:
            asked = f"{thread}-twin"
        request = CreateSession(thread=asked, metadata={"tag": tag}, recreate_lost=replaces)
        opened = await self._do(
            "create",
            lambda service: service.create_session(request),
            of_opened,
            thread=thread,
            tag=tag,
            replaces=replaces,
        )
        if isinstance(opened, Opened):
            self._hold(opened.session, thread)

    def _hold(self, session: Session, thread: str | None) -> None:
        shared = thread is not None and thread.startswith("shared-")
        lost = session.state is SessionState.LOST
        self._held[session.id] = Held(session.id, thread, shared, lost)

    async def _after_a_loss(self, held: Held) -> None:
        choice = self._random.random()
        if choice < 0.2:
            await self._delete(held)
        elif choice < 0.5 and held.thread is not None:
            await self._create(held.thread, replaces=True)
        else:
            session = await self._do(
                "recreate",
                lambda service: service.recreate_session(held.id),
                of_session,
                session=held.id,
                thread=held.thread,
                replaces=True,
            )
            if isinstance(session, Session):
                self._hold(session, held.thread)
            else:
                await self.get(held)
        await asyncio.sleep(self._pace_s)

    async def get(self, held: Held) -> Session | Exception:
        session = await self._do(
            "get",
            lambda service: service.get_session(held.id),
            of_session,
            session=held.id,
            thread=held.thread,
        )
        if isinstance(session, Session):
            self._hold(session, held.thread)
        else:
            self._heed(held, session)
        return session

    async def _delete(self, held: Held) -> None:
        answer = await self._do(
            "delete", lambda service: service.delete_session(held.id), lambda _: {}, session=held.id
        )
        if not isinstance(answer, Exception) or isinstance(answer, NotFound):
            self._held.pop(held.id, None)

    async def list(self) -> tuple[Listed, ...]:
        async def everything(service: SandboxService) -> tuple[Listed, ...]:
            found: tuple[Listed, ...] = ()
            after: str | None = None
            while True:
                page = await service.list_sessions(after=after)
                found += tuple(listed_of(session) for session in page.sessions)
                if page.next is None:
                    return found
                after = page.next

        answer = await self._do("list", everything, lambda rows: {"sessions": rows})
        return () if isinstance(answer, Exception) else answer

    # commands

    async def _run_and_ask_again(self, held: Held) -> None:
        exec_id = self._new_exec()
        for number in range(TRIES):
            answer = await self._run(held, exec_id)
            if held.shared or held.lost or held.id not in self._held:
                return
            if not isinstance(answer, Exception):
                if number or self._random.random() < 0.8:
                    return
            elif self._random.random() < 0.2:
                return
            await asyncio.sleep(self._random.uniform(0, self._pace_s))

    async def _burst(self, held: Held) -> None:
        await asyncio.gather(*(self._run(held, self._new_exec()) for _ in range(3)))

    def _new_exec(self) -> str:
        self._commands += 1
        return f"x-{self._number}-{self._commands}"

    async def _run(self, held: Held, exec_id: str) -> object:
        request = append_request(exec_id)

        async def send(service: SandboxService) -> ExecResult:
            unlucky = self._random.random() < 0.3
            if self._bug == "lost-ack" and unlucky:
                return await service.execute(held.id, ExecRequest(command=f"echo 1:{exec_id}"))
            result = await service.execute(held.id, request)
            if self._bug == "double-run" and unlucky:
                await service.execute(held.id, ExecRequest(command=request.command))
            return result

        answer = await self._do("run", send, of_result, session=held.id, exec=exec_id)
        if isinstance(answer, Exception):
            self._heed(held, answer)
        return answer

    async def _run_in_thread(self) -> None:
        thread = self._random.choice(self._threads)
        exec_id = self._new_exec()
        create = CreateSession(thread=thread)
        request = append_request(exec_id)

        def fields(ran: ThreadRun) -> dict[str, Any]:
            return of_session(ran.opened.session) | of_result(ran.result)

        answer = await self._do(
            "run",
            lambda service: service.execute_in_thread(create, request),
            fields,
            thread=thread,
            exec=exec_id,
        )
        if isinstance(answer, ThreadRun):
            self._hold(answer.opened.session, thread)
        elif isinstance(answer, SandboxLost):
            await self._create(thread)

    async def read(self, held: Held) -> None:
        """By a command, or as a file."""

        async def by_command(service: SandboxService) -> tuple[int, bytes]:
            result = await service.execute(held.id, ExecRequest(command="cat log 2>/dev/null; true"))
            return result.generation, result.stdout

        async def as_file(service: SandboxService) -> tuple[int, bytes]:
            # A file does not say of which sandbox it is: of this one, if it was the session's before and after.
            while True:
                generation = (await service.get_session(held.id)).generation
                content = b""
                try:
                    content = await service.files(held.id).read_bytes("log")
                except FileProblem as problem:
                    if problem.reason != "not_found":
                        raise
                if (await service.get_session(held.id)).generation == generation:
                    return generation, content

        def fields(answer: tuple[int, bytes]) -> dict[str, Any]:
            return {"generation": answer[0], "lines": tuple(answer[1].decode().split())}

        way = self._random.choice([by_command, by_command, as_file])
        answer = await self._do("read", way, fields, session=held.id)
        if isinstance(answer, Exception):
            self._heed(held, answer)

    # one operation

    def _heed(self, held: Held, error: Exception) -> None:
        """What a client does about what it was told."""
        if isinstance(error, NotFound):
            self._held.pop(held.id, None)
        elif isinstance(error, SandboxLost):
            held.lost = True

    async def _do(
        self,
        do: str,
        work: Callable[[SandboxService], Awaitable[T]],
        fields: Callable[[T], dict[str, Any]],
        **call: Any,
    ) -> T | Exception:
        number = self._recorder.number()
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
            # A little longer, so that whoever takes longer is seen to.
            async with asyncio.timeout(DEADLINE_S + 5):
                answer = await work(self._services[via])
            said = fields(answer)
        except SandlotError as error:
            self._recorder.add(error_event(number, self._clock(), error))
            return error
        except TimeoutError as error:
            self._recorder.add(unforeseen_event(number, self._clock(), "deadline", "no answer"))
            return error
        except Exception as error:  # noqa: BLE001  # the checker says what it means
            self._recorder.add(unforeseen_event(number, self._clock(), "unforeseen", repr(error)))
            return error
        self._recorder.add(Event("ok", self._clock(), op=number, **said))
        return answer


def append_request(exec_id: str) -> ExecRequest:
    """Asked for again it must be the same, so the pause in it comes of the id."""
    chance = random.Random(exec_id)
    pause = chance.choice(["", "", "", "", "sleep 0.3; ", "sleep 2; "])
    before, after = chance.sample([pause, ""], 2)
    command = f"{before}echo {exec_id} >> log; {after}grep -nx {exec_id} < log"
    return ExecRequest(command=command, exec_id=exec_id)

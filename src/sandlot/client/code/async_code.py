"""``AsyncCode``: runs code in a session's contexts, which keep its variables."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncGenerator, Collection, Mapping
from typing import Final, Literal, Protocol, TypedDict, Unpack

from sandlot.client.code.code_result import CodeResult
from sandlot.client.code.reading import CellCallbacks, CellReader, OnEvent, OnResult, OnText
from sandlot.client.keywords import check_keywords, resolve_timeout
from sandlot.domain.code.contexts import Cell, Context, CreateContext, Language, new_context_id
from sandlot.domain.code.events import CellEvent
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.execution import MAX_OUTPUT_LIMIT_BYTES, ExecRequest
from sandlot.domain.ids import new_exec_id
from sandlot.domain.service import SandboxService
from sandlot.domain.session import Session
from sandlot.domain.text.suggestions import did_you_mean

LanguageName = Language | Literal["python", "javascript", "typescript", "bash", "r"]
RUN_ARGUMENTS: Final = ("context", "check", "on_stdout", "on_stderr", "on_result", "on_event")
# Names from other SDKs, and what to use here instead.
_HINTS: Final = {
    "language": "use context='javascript', which is the language's default context",
    "envs": "use env={...}",
    "cwd": "a context has a folder: create(cwd=...)",
    "shell": "a context keeps its state; session.shell() is for commands",
    "on_error": "the result has the error, and check=True raises it",
    "stdin": "code has no stdin; write a file, or put the data into the code",
}


class CodeOptions(TypedDict, total=False):
    """Options of code that runs in a context.

    env: variables for this code.
    timeout_s: seconds after which the code is interrupted; the server has a default and a maximum.
    timeout: another name for timeout_s, as other libraries call it.
    exec_id: an id for this run. Using the same id again returns the same result; the code never runs
        twice.
    approved: a person has approved this code. It passes rules of command policies that ask, and none that
        deny.
    """

    env: Mapping[str, str]
    timeout_s: float | None
    timeout: float | None
    exec_id: str | None
    approved: bool


class Described(Protocol):
    """What contexts know of their session, which is an ``AsyncSession``."""

    info: Session


class AsyncCode:
    """Runs code in a session's contexts. A context keeps its variables from one call to the next.

    The session's image needs kernels, as that of the environment ``code`` has. Without them, calls raise
    ``Unsupported``.
    """

    def __init__(self, session: Described, service: SandboxService) -> None:
        self._session = session
        self._service = service

    @property
    def _session_id(self) -> str:
        return self._session.info.id

    async def run(
        self,
        code: str,
        *,
        context: str | AsyncCodeContext = Language.PYTHON.value,
        check: bool = False,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_result: OnResult | None = None,
        on_event: OnEvent | None = None,
        **options: Unpack[CodeOptions],
    ) -> CodeResult:
        """Run code, wait for it to end and return its result: its value, displays, text and error.

        Code that raises an error is a normal result. With ``check`` it raises ``CodeFailed`` instead.

        ``context``: a context, or its id. A language's name, such as ``"javascript"``, is the id of its
        default context, which the first call makes. Code in one context runs one after another.

        ``on_stdout`` and ``on_stderr`` receive text while the code runs, ``on_result`` each value and
        display, ``on_event`` every event; with asyncio, they can be ``async def``. If one of them raises,
        this call raises the same error and the code goes on.

        For the other options, see ``CodeOptions``.
        """
        request = cell_request("run", code, context_id_of(context), options, accepts=RUN_ARGUMENTS)
        callbacks = CellCallbacks(on_stdout, on_stderr, on_result, on_event)
        if not callbacks.all:
            result = CodeResult.of(await self._service.execute(self._session_id, request))
            return result.check() if check else result
        async with contextlib.aclosing(self.events_of(request)) as events:
            async for event in events:
                if isinstance(event, CodeResult):
                    return event.check() if check else event
                for returned in callbacks.calls(event):
                    if inspect.isawaitable(returned):
                        await returned
        raise AssertionError("the last event is the result")

    def stream(
        self,
        code: str,
        *,
        context: str | AsyncCodeContext = Language.PYTHON.value,
        **options: Unpack[CodeOptions],
    ) -> AsyncGenerator[CellEvent | CodeResult, None]:
        """Run code and iterate over its events; the last one is its ``CodeResult``.

        Leaving the loop early does not end the code. For the options, see ``CodeOptions``.
        """
        request = cell_request("stream", code, context_id_of(context), options, accepts=("context",))
        return self.events_of(request)

    async def events_of(self, request: ExecRequest) -> AsyncGenerator[CellEvent | CodeResult, None]:
        """Like ``stream``, for an ``ExecRequest`` with a cell that you have built yourself."""
        reader = CellReader(self._session.info, request)
        execution = await self._service.start_exec(self._session_id, request)
        try:
            async for event in execution.events():
                for each in reader.read(event):
                    yield each
        finally:
            await execution.detach()
        yield reader.result()

    async def create(
        self, language: LanguageName = "python", *, id: str | None = None, cwd: str | None = None
    ) -> AsyncCodeContext:
        """Create a context with variables of its own, and return it.

        ``language``: what it speaks. ``id``: your name for it; creating the same context again returns it.
        ``cwd``: the folder that it starts in, /workspace by default.
        """
        wanted = language_of(language)
        request = CreateContext(wanted, new_context_id(wanted) if id is None else id, cwd)
        created = await self._service.create_context(self._session_id, request)
        return AsyncCodeContext(self, self._service, self._session_id, created.id, created)

    def get(self, id: str) -> AsyncCodeContext:
        """Return a handle to the context with this id, such as that of a language's default context."""
        return AsyncCodeContext(self, self._service, self._session_id, id)

    async def contexts(self) -> list[AsyncCodeContext]:
        """List the contexts of the session. Each handle has the context's ``info``."""
        found = await self._service.list_contexts(self._session_id)
        return [AsyncCodeContext(self, self._service, self._session_id, each.id, each) for each in found]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._session_id}>"


class AsyncCodeContext:
    """A handle to one context: a kernel with variables of its own.

    ``info``: the context as the server last described it; None until then.
    """

    def __init__(
        self,
        code: AsyncCode,
        service: SandboxService,
        session_id: str,
        id: str,
        info: Context | None = None,
    ) -> None:
        self.code = code
        self.info = info
        self._service = service
        self._session_id = session_id
        self._id = id

    @property
    def id(self) -> str:
        """The context's id."""
        return self._id

    async def run(
        self,
        code: str,
        *,
        check: bool = False,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_result: OnResult | None = None,
        on_event: OnEvent | None = None,
        **options: Unpack[CodeOptions],
    ) -> CodeResult:
        """Run code in this context; otherwise like ``AsyncCode.run``."""
        return await self.code.run(
            code,
            context=self._id,
            check=check,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            on_result=on_result,
            on_event=on_event,
            **options,
        )

    def stream(
        self, code: str, **options: Unpack[CodeOptions]
    ) -> AsyncGenerator[CellEvent | CodeResult, None]:
        """Run code in this context; otherwise like ``AsyncCode.stream``."""
        return self.code.stream(code, context=self._id, **options)

    async def interrupt(self) -> None:
        """Interrupt what runs in the context. Its variables stay."""
        await self._service.interrupt_context(self._session_id, self._id)

    async def restart(self) -> None:
        """Start the context's kernel again. Its variables go, and what it runs ends with an error."""
        self.info = await self._service.restart_context(self._session_id, self._id)

    async def delete(self) -> None:
        """End the context. Deleting twice is no error."""
        await self._service.delete_context(self._session_id, self._id)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._id!r} of {self._session_id}>"


def cell_request(
    method: str, code: str, context: str, options: CodeOptions, *, accepts: Collection[str]
) -> ExecRequest:
    """Build the request for a cell. ``accepts``: the other keyword arguments of ``method``."""
    check_keywords(method, options, {*CodeOptions.__annotations__, *accepts}, _HINTS)
    if not isinstance(code, str):
        raise InvalidRequest(f"Code must be a string, not {type(code).__name__}.")
    return ExecRequest(
        cell=Cell(code, context),
        exec_id=options.get("exec_id") or new_exec_id(),
        env=options.get("env") or {},
        timeout_s=resolve_timeout(method, options.get("timeout_s"), options.get("timeout")),
        # A picture is one long line, which must not be cut.
        output_limit=MAX_OUTPUT_LIMIT_BYTES,
        approved=options.get("approved", False),
    )


def context_id_of(context: object) -> str:
    given = getattr(context, "id", context)
    if not isinstance(given, str):
        raise InvalidRequest(f"context must be a context or its id, not {context!r:.80}.")
    return str(given)


def language_of(given: str) -> Language:
    if given not in Language.__members__.values():
        raise InvalidRequest(
            f"Unknown language {given!r:.80}.{did_you_mean(str(given)[:80], Language)} Languages are: "
            f"{', '.join(Language)}."
        )
    return Language(given)

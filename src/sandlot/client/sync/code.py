"""``Code`` and ``CodeContext``: ``AsyncCode`` and ``AsyncCodeContext`` without ``await``."""

from __future__ import annotations

import contextlib
import inspect
from typing import Unpack

from sandlot.client.code.async_code import (
    RUN_ARGUMENTS,
    AsyncCode,
    AsyncCodeContext,
    CodeOptions,
    LanguageName,
    cell_request,
    context_id_of,
)
from sandlot.client.code.code_result import CodeResult
from sandlot.client.code.reading import CellCallbacks, OnEvent, OnResult, OnText
from sandlot.client.sync.blocking import Facade, blocking, iterating
from sandlot.domain.code.contexts import Context as ContextInfo
from sandlot.domain.code.contexts import Language


class Code(Facade[AsyncCode]):
    """Runs code in a session's contexts. A context keeps its variables from one call to the next.

    The session's image needs kernels, as that of the environment ``code`` has. Without them, calls raise
    ``Unsupported``.
    """

    def run(
        self,
        code: str,
        *,
        context: str | CodeContext = Language.PYTHON.value,
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
        display, ``on_event`` every event. If one of them raises, this call raises the same error and the
        code goes on.

        For the other options, see ``CodeOptions``.
        """
        context_id = context_id_of(context)
        callbacks = CellCallbacks(on_stdout, on_stderr, on_result, on_event)
        if not callbacks.all:
            return self._loop.run(self._wrapped.run(code, context=context_id, check=check, **options))
        if any(inspect.iscoroutinefunction(callback) for callback in callbacks.all):
            raise TypeError("Callbacks must be plain functions. Use an AsyncSession for async ones.")
        request = cell_request("run", code, context_id, options, accepts=RUN_ARGUMENTS)
        with contextlib.closing(self._loop.iterate(self._wrapped.events_of(request))) as events:
            for event in events:
                if isinstance(event, CodeResult):
                    return event.check() if check else event
                for _ in callbacks.calls(event):
                    pass
        raise AssertionError("the last event is the result")

    stream = iterating(AsyncCode.stream)
    events_of = iterating(AsyncCode.events_of)

    def create(
        self, language: LanguageName = "python", *, id: str | None = None, cwd: str | None = None
    ) -> CodeContext:
        """Create a context with variables of its own, and return it.

        ``language``: what it speaks. ``id``: your name for it; creating the same context again returns it.
        ``cwd``: the folder that it starts in, /workspace by default.
        """
        created = self._loop.run(self._wrapped.create(language, id=id, cwd=cwd))
        return CodeContext(created, self._loop)

    def get(self, id: str) -> CodeContext:
        """Return a handle to the context with this id, such as that of a language's default context."""
        return CodeContext(self._wrapped.get(id), self._loop)

    def contexts(self) -> list[CodeContext]:
        """List the contexts of the session. Each handle has the context's ``info``."""
        found = self._loop.run(self._wrapped.contexts())
        return [CodeContext(each, self._loop) for each in found]


class CodeContext(Facade[AsyncCodeContext]):
    """A handle to one context: a kernel with variables of its own."""

    @property
    def id(self) -> str:
        """The context's id."""
        return self._wrapped.id

    @property
    def info(self) -> ContextInfo | None:
        """The context as the server last described it; None until then."""
        return self._wrapped.info

    def run(
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
        """Run code in this context; otherwise like ``Code.run``."""
        return Code(self._wrapped.code, self._loop).run(
            code,
            context=self.id,
            check=check,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            on_result=on_result,
            on_event=on_event,
            **options,
        )

    stream = iterating(AsyncCodeContext.stream)
    interrupt = blocking(AsyncCodeContext.interrupt)
    restart = blocking(AsyncCodeContext.restart)
    delete = blocking(AsyncCodeContext.delete)

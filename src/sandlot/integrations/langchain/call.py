"""One tool call: which sandbox it uses, whether it is a repetition, where its output is shown."""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from langchain.tools import ToolRuntime
from langchain_core.messages import ToolMessage
from langchain_core.messages.content import create_image_block

from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import SandlotError
from sandlot.domain.execution import Verdict
from sandlot.integrations.langchain.time_travel import Step, ToolOutput, surrounding_step
from sandlot.integrations.langgraph_thread import task_of, thread_of
from sandlot.integrations.sandboxes import Sandboxes
from sandlot.integrations.toolbox import Answer, answer_or_raise
from sandlot.integrations.toolbox.commands import OnOutput

Runtime = ToolRuntime[Any, Any]
Content = str | list[str | dict[str, Any]]
Operation = Callable[[AsyncSession], Awaitable[Answer]]
# Set while a tool call runs that a person has approved.
APPROVED: contextvars.ContextVar[bool] = contextvars.ContextVar("approved", default=False)
# Set while a tool call runs a second time, on purpose. It is then another call.
SECOND_RUN: contextvars.ContextVar[bool] = contextvars.ContextVar("second_run", default=False)


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call. ``id`` is None if a repeated call cannot be told from a new one.

    ``approved``: a person has approved it.
    """

    id: str | None = None
    on_output: OnOutput | None = None
    approved: bool = False

    @classmethod
    def from_runtime(
        cls,
        config: Mapping[str, Any],
        runtime: Runtime | None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> Call:
        """Build a call in the caller's context. ``loop``: that of a caller that does not block."""
        if runtime is None:
            return cls()
        return cls(call_id(config, runtime.tool_call_id), _output_emitter(runtime, loop), APPROVED.get())


def call_id(config: Mapping[str, Any], id_within_task: str | None) -> str | None:
    """An id that stays the same when LangGraph repeats a task, and differs in every other task.

    LangGraph repeats a task after a crash, for example. The model's own call ids are not enough,
    because some models restart their numbering in each message. The namespace contains the task's
    id, which LangGraph derives from the checkpoint that the task starts from.
    """
    task = task_of(config)
    if task is None or id_within_task is None:
        return None
    again = ["second run"] if SECOND_RUN.get() else []
    return json.dumps([thread_of(config), task, id_within_task, *again])


def perform(
    sandboxes: Sandboxes, config: Mapping[str, Any], operation: Operation, step: Step | None = None
) -> Answer:
    """Perform an operation and block until it ends.

    Errors that a model can act on become answers. Other errors are raised. ``step``: begin it before, and
    end it afterwards. Inside of another step, the operation is a part of that one.
    """
    work = _Work(sandboxes, thread_of(config), operation, step)
    try:
        return sandboxes.run(work.thread, work, snapshot=work.snapshot)
    except SandlotError as error:
        return work.answer_or_raise(error)


async def aperform(
    sandboxes: Sandboxes, config: Mapping[str, Any], operation: Operation, step: Step | None = None
) -> Answer:
    work = _Work(sandboxes, thread_of(config), operation, step)
    try:
        return await sandboxes.arun(work.thread, work, snapshot=work.snapshot)
    except SandlotError as error:
        return work.answer_or_raise(error)


class _Work:
    """An operation as a part of a step, if there is one."""

    def __init__(self, sandboxes: Sandboxes, thread: str, operation: Operation, step: Step | None) -> None:
        self.thread = thread
        self._operation = operation
        # Found here, in the caller's context: the work itself runs in the client's.
        surrounding = surrounding_step(sandboxes, thread)
        self._step = surrounding or step
        self._ends = step is not None and surrounding is None

    @property
    def snapshot(self) -> str | None:
        return None if self._step is None else self._step.snapshot

    async def __call__(self, session: AsyncSession) -> Answer:
        if self._step is not None:
            await self._step.begin(session)
        answer = await _in_sandbox(session, self._operation)
        if self._step is not None and self._ends:
            await self._step.end(session)
        return answer

    def answer_or_raise(self, error: SandlotError) -> Answer:
        if self._step is not None and self._step.must_raise(error):
            raise error
        return answer_or_raise(error)


async def _in_sandbox(session: AsyncSession, operation: Operation) -> Answer:
    answer = await operation(session)
    sandbox_ids = {"session_id": session.id, "generation": session.generation}
    return replace(answer, data={**answer.data, **sandbox_ids})


def to_tool_output(
    answer: Answer, tool: str, runtime: Runtime | None, step: Step | None = None
) -> tuple[Content | ToolOutput, dict[str, Any]]:
    """Content and artifact of a tool call. Pictures are blocks of the content, which models view.

    A failure is returned as a complete message, because LangChain marks plain text as a success. What
    ``step`` adds to the graph's state comes with a complete message, too.
    """
    updates = step is not None and bool(step.update)
    if runtime is None or runtime.tool_call_id is None or not (updates or _is_error(answer)):
        return _content(answer), answer.data
    message = ToolMessage(
        _content(answer),
        tool_call_id=runtime.tool_call_id,
        name=tool,
        artifact=answer.data,
        status="error" if _is_error(answer) else "success",
    )
    return message if step is None else step.add_to(message), answer.data


def _content(answer: Answer) -> Content:
    if not answer.pictures:
        return answer.text
    blocks = [
        create_image_block(base64=picture.base64, mime_type=picture.media_type) for picture in answer.pictures
    ]
    return [{"type": "text", "text": answer.text}, *(dict(block) for block in blocks)]


def _is_error(answer: Answer) -> bool:
    """Whether the tool call failed.

    A program with a non-zero exit code has done its work. A program that was killed has not.
    """
    return answer.failed and answer.data.get("verdict") not in (Verdict.NONZERO, Verdict.EGRESS_DENIED)


def _output_emitter(runtime: Runtime, loop: asyncio.AbstractEventLoop | None) -> OnOutput:
    # The caller's context decides where output is shown, but the work runs on the client's loop.
    context = contextvars.copy_context()

    def emit(text: str) -> None:
        if loop is None or loop is asyncio.get_running_loop():
            context.run(runtime.emit_output_delta, text)
        else:
            loop.call_soon_threadsafe(runtime.emit_output_delta, text, context=context)

    return emit

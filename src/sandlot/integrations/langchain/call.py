"""One call of a tool: whose sandbox it is about, whether it was made before, where its output is shown."""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from langchain.tools import ToolRuntime
from langchain_core.messages import ToolMessage

from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import SandlotError
from sandlot.domain.execution import Verdict
from sandlot.integrations.langgraph_thread import task_of, thread_of
from sandlot.integrations.sandboxes import Sandboxes
from sandlot.integrations.toolbox import Answer, refusal
from sandlot.integrations.toolbox.commands import OnOutput

Runtime = ToolRuntime[Any, Any]
Operation = Callable[[AsyncSession], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Call:
    """``id``: None where nothing tells a call that is made again from a new one."""

    id: str | None = None
    on_output: OnOutput | None = None

    @classmethod
    def of(
        cls,
        config: Mapping[str, Any],
        runtime: Runtime | None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> Call:
        """Made in the caller's context. ``loop``: where the caller awaits it, if it does not block."""
        if runtime is None:
            return cls()
        return cls(call_id(config, runtime.tool_call_id), _live_output(runtime, loop))


def call_id(config: Mapping[str, Any], within_task: str | None) -> str | None:
    """The same when LangGraph executes a task again, as after a crash; another in any other task.

    A model's ids for its calls are not enough: some models begin anew with each of their messages. The
    namespace has the task's id, which comes of the checkpoint that the task starts from.
    """
    task = task_of(config)
    if task is None or within_task is None:
        return None
    return json.dumps([thread_of(config), task, within_task])


def perform(sandboxes: Sandboxes, config: Mapping[str, Any], operation: Operation) -> Answer:
    """Blocks. What a model can act on is an answer; the rest is raised."""
    thread = thread_of(config)
    try:
        return sandboxes.run(thread, lambda session: _in_sandbox(session, operation))
    except SandlotError as error:
        return refusal(error)


async def aperform(sandboxes: Sandboxes, config: Mapping[str, Any], operation: Operation) -> Answer:
    thread = thread_of(config)
    try:
        return await sandboxes.arun(thread, lambda session: _in_sandbox(session, operation))
    except SandlotError as error:
        return refusal(error)


async def _in_sandbox(session: AsyncSession, operation: Operation) -> Answer:
    answer = await operation(session)
    where = {"session_id": session.id, "generation": session.generation}
    return replace(answer, data={**answer.data, **where})


def as_output(answer: Answer, tool: str, runtime: Runtime | None) -> tuple[str | ToolMessage, dict[str, Any]]:
    """Content and artifact. What failed is a message of its own: LangChain would call it a success."""
    if runtime is None or runtime.tool_call_id is None or not _is_error(answer):
        return answer.text, answer.data
    message = ToolMessage(
        answer.text, tool_call_id=runtime.tool_call_id, name=tool, artifact=answer.data, status="error"
    )
    return message, answer.data


def _is_error(answer: Answer) -> bool:
    """A program that says no has done what it was asked; one that was ended has not."""
    return answer.failed and answer.data.get("verdict") != Verdict.NONZERO


def _live_output(runtime: Runtime, loop: asyncio.AbstractEventLoop | None) -> OnOutput:
    # Where output is to be shown is in the caller's context, and the work is done on the client's loop.
    context = contextvars.copy_context()

    def emit(text: str) -> None:
        if loop is None or loop is asyncio.get_running_loop():
            context.run(runtime.emit_output_delta, text)
        else:
            loop.call_soon_threadsafe(runtime.emit_output_delta, text, context=context)

    return emit

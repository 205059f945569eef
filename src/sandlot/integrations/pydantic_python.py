"""Pydantic AI: Python whose variables stay, as a tool.

    agent = Agent(model, toolsets=[python_toolset(thread="conversation-1")])

The tool's return value is the text. Pictures follow as content that the model sees.
"""

from __future__ import annotations

from typing import Annotated, Any, Unpack

from pydantic import Field
from pydantic_ai import BinaryContent, RunContext, ToolReturn
from pydantic_ai.toolsets import FunctionToolset

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.client.options import SessionOptions, check_session_options
from sandlot.client.sync.client import Client
from sandlot.domain.errors import SandlotError
from sandlot.integrations import toolbox
from sandlot.integrations.sandboxes import Sandboxes
from sandlot.integrations.toolbox import Answer, answer_or_raise
from sandlot.integrations.toolbox.commands import MAX_TIMEOUT_S, TIMEOUT_S


def python_toolset(
    client: Client | AsyncClient | None = None,
    *,
    thread: str,
    environment: str | None = "code",
    **options: Unpack[SessionOptions],
) -> FunctionToolset[Any]:
    """A toolset with one tool, ``python``, that runs code in the sandbox of a conversation.

    ``thread``: the conversation's id, which names its sandbox. ``environment``: one with kernels. An
    ``AsyncClient`` serves one event loop, a ``Client`` any number of them.
    """
    check_session_options("python_toolset", options, ("client", "thread", "environment"))
    sandboxes = Sandboxes(client, environment=environment, **options)

    async def python(
        context: RunContext[Any],
        code: str,
        timeout_s: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)] = TIMEOUT_S,
    ) -> ToolReturn:
        """Run Python code in a sandbox. Variables, imports and functions stay for the next call.

        Args:
            context: the run.
            code: the code. You get what it prints, the value of its last expression, a traceback if it
                fails, and its pictures.
            timeout_s: seconds until the code is interrupted.
        """
        call = None if context.tool_call_id is None else f"{context.run_id}/{context.tool_call_id}"

        async def work(session: AsyncSession) -> Answer:
            return await toolbox.python(session, code, timeout_s=timeout_s, call_id=call)

        try:
            answer = await sandboxes.arun(thread, work)
        except SandlotError as error:
            answer = answer_or_raise(error)
        pictures = [BinaryContent(each.content, media_type=each.media_type) for each in answer.pictures]
        return ToolReturn(answer.text, content=pictures or None, metadata=answer.data)

    return FunctionToolset([python], id="sandlot_python")

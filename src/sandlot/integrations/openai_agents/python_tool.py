"""``python_tool``: Python whose variables stay, as a function tool for any agent."""

from __future__ import annotations

from typing import Annotated, Any, Unpack

from agents import FunctionTool, ToolOutputImage, ToolOutputText, function_tool
from agents.tool_context import ToolContext
from pydantic import Field

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.client.options import SessionOptions, check_session_options
from sandlot.client.sync.client import Client
from sandlot.domain.errors import SandlotError
from sandlot.integrations import toolbox
from sandlot.integrations.sandboxes import Sandboxes
from sandlot.integrations.toolbox import Answer, answer_or_raise
from sandlot.integrations.toolbox.commands import MAX_TIMEOUT_S, TIMEOUT_S


def python_tool(
    client: Client | AsyncClient | None = None,
    *,
    thread: str,
    environment: str | None = "code",
    **options: Unpack[SessionOptions],
) -> FunctionTool:
    """A tool that runs Python in the sandbox of a conversation and shows the model its pictures.

    ``thread``: the conversation's id, which names its sandbox. ``environment``: one with kernels. An
    ``AsyncClient`` serves one event loop, a ``Client`` any number of them.
    """
    check_session_options("python_tool", options, ("client", "thread", "environment"))
    sandboxes = Sandboxes(client, environment=environment, **options)

    async def python(
        context: ToolContext[Any],
        code: Annotated[str, Field(description="the code")],
        timeout_s: Annotated[
            float, Field(gt=0, le=MAX_TIMEOUT_S, description="seconds until the code is interrupted")
        ] = TIMEOUT_S,
    ) -> list[ToolOutputText | ToolOutputImage]:
        """Run Python code in a sandbox. Variables, imports and functions stay for the next call. You get
        what it prints, the value of its last expression, a traceback if it fails, and its pictures."""

        async def work(session: AsyncSession) -> Answer:
            return await toolbox.python(session, code, timeout_s=timeout_s)

        try:
            answer = await sandboxes.arun(thread, work)
        except SandlotError as error:
            answer = answer_or_raise(error)
        pictures = [
            ToolOutputImage(image_url=f"data:{each.media_type};base64,{each.base64}")
            for each in answer.pictures
        ]
        return [ToolOutputText(text=answer.text), *pictures]

    return function_tool(python)

"""``sandbox_tools``: what a model can do in its conversation's sandbox, as LangChain's tools."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, Unpack

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolArg, StructuredTool
from pydantic import BaseModel

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.client.options import SessionOptions, check_session_options
from sandlot.client.sync.client import Client
from sandlot.integrations import toolbox
from sandlot.integrations.langchain import arguments as about
from sandlot.integrations.langchain.call import Call, Runtime, aperform, as_output, perform
from sandlot.integrations.sandboxes import Sandboxes
from sandlot.integrations.toolbox import Answer
from sandlot.integrations.toolbox.commands import exec_id_of, job_of

# LangGraph gives it; a tool that is called outside of a graph goes without.
InjectedRuntime = Annotated[Runtime | None, InjectedToolArg]
Output = tuple[str | ToolMessage, dict[str, Any]]
_Operation = Callable[..., Awaitable[Answer]]  # of a session, a call and the model's arguments


def sandbox_tools(
    client: Client | AsyncClient | None = None,
    *,
    environment: str | None = None,
    name: str | None = None,
    **options: Unpack[SessionOptions],
) -> list[BaseTool]:
    """Tools for a sandbox per conversation: the run's ``thread_id`` says whose it is.

    With a ``Client`` they work under ``invoke`` and ``ainvoke``; with an ``AsyncClient`` under ``ainvoke``.
    ``name``: a sandbox of its own within the conversation, for a subagent that is not to share its parent's.

    What commands print is shown as it comes, under ``stream_mode=["tools", "custom"]``: with "tools" alone
    LangGraph holds it back until the step is over.
    """
    check_session_options("sandbox_tools", options, ("client", "environment", "name"))
    return tools_of(Sandboxes(client, environment=environment, name=name, **options))


def tools_of(sandboxes: Sandboxes) -> list[BaseTool]:
    return [_tool(sandboxes, *described) for described in _TOOLS]


def _tool(
    sandboxes: Sandboxes, name: str, description: str, schema: type[BaseModel], operation: _Operation
) -> BaseTool:
    def run(config: RunnableConfig, runtime: InjectedRuntime = None, **given: Any) -> Output:
        call = Call.of(config, runtime)
        answer = perform(sandboxes, config, lambda session: operation(session, call, **given))
        return as_output(answer, name, runtime)

    async def arun(config: RunnableConfig, runtime: InjectedRuntime = None, **given: Any) -> Output:
        call = Call.of(config, runtime, asyncio.get_running_loop())
        answer = await aperform(sandboxes, config, lambda session: operation(session, call, **given))
        return as_output(answer, name, runtime)

    return StructuredTool(
        name=name,
        description=description,
        args_schema=schema,
        func=run,
        coroutine=arun,
        response_format="content_and_artifact",
    )


async def _bash(
    session: AsyncSession,
    call: Call,
    command: str | None,
    timeout_s: float,
    background: bool,
    restart: bool,
) -> Answer:
    if restart:
        answer = await toolbox.restart(session, before=_exec_of(call, command, background))
        if answer.failed or command is None:
            return answer
    if command is None:
        return Answer("[no command is given]", failed=True)
    return await toolbox.bash(
        session,
        command,
        timeout_s=timeout_s,
        background=background,
        call_id=call.id,
        on_output=call.on_output,
    )


def _exec_of(call: Call, command: str | None, background: bool) -> str | None:
    """The id that the call's command has if the call was made before."""
    if call.id is None or command is None:
        return None
    exec_id = exec_id_of(call.id, command)
    return job_of(exec_id) if background else exec_id


async def _edit_file(session: AsyncSession, call: Call, **given: Any) -> Answer:
    return await toolbox.edit_file(session, **given, call_id=call.id)


def _plain(operation: Callable[..., Awaitable[Answer]]) -> _Operation:
    return lambda session, call, **given: operation(session, **given)


_TOOLS: Final[tuple[tuple[str, str, type[BaseModel], _Operation], ...]] = (
    ("bash", about.BASH, about.BashArguments, _bash),
    ("read_output", about.READ_OUTPUT, about.ReadOutputArguments, _plain(toolbox.read_output)),
    ("stop", about.STOP, about.StopArguments, _plain(toolbox.stop)),
    ("read_file", about.READ_FILE, about.ReadFileArguments, _plain(toolbox.read_file)),
    ("write_file", about.WRITE_FILE, about.WriteFileArguments, _plain(toolbox.write_file)),
    ("edit_file", about.EDIT_FILE, about.EditFileArguments, _edit_file),
    ("list_files", about.LIST_FILES, about.ListFilesArguments, _plain(toolbox.list_files)),
    ("search", about.SEARCH, about.SearchArguments, _plain(toolbox.search)),
    ("upload_file", about.UPLOAD_FILE, about.UploadFileArguments, _plain(toolbox.upload_file)),
    ("download_file", about.DOWNLOAD_FILE, about.DownloadFileArguments, _plain(toolbox.download_file)),
)

"""``sandbox_tools``: the toolbox for the conversation's sandbox, as LangChain tools."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, Unpack

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolArg, StructuredTool
from pydantic import BaseModel

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.client.options import SessionOptions, check_session_options
from sandlot.client.sync.client import Client
from sandlot.integrations import toolbox
from sandlot.integrations.langchain import arguments
from sandlot.integrations.langchain.call import Call, Content, Runtime, aperform, perform, to_tool_output
from sandlot.integrations.langchain.time_travel import Step, ToolOutput, surrounding_step
from sandlot.integrations.langgraph_thread import thread_of
from sandlot.integrations.sandboxes import Sandboxes
from sandlot.integrations.toolbox import Answer
from sandlot.integrations.toolbox.commands import exec_id_for_call, job_id

# LangGraph provides it. A tool that is called outside a graph has none.
InjectedRuntime = Annotated[Runtime | None, InjectedToolArg]
Output = tuple[Content | ToolOutput, dict[str, Any]]
_PARAMETERS: Final = ("client", "environment", "name", "python", "time_travel")
_Operation = Callable[..., Awaitable[Answer]]  # takes a session, a call and the model's arguments


_Spec = tuple[str, str, type[BaseModel], _Operation]  # name, description, schema


def sandbox_tools(
    client: Client | AsyncClient | None = None,
    *,
    environment: str | None = None,
    name: str | None = None,
    python: bool = False,
    time_travel: bool = False,
    **options: Unpack[SessionOptions],
) -> list[BaseTool]:
    """Tools for one sandbox per conversation, which the run's ``thread_id`` selects.

    With a ``Client`` the tools work with ``invoke`` and ``ainvoke``, with an ``AsyncClient`` only
    with ``ainvoke``. ``name`` selects a separate sandbox in the conversation, for a subagent that
    must not share its parent's.

    ``python``: add the tool ``python``, which keeps its variables and shows the model its pictures. The
    environment needs kernels, as ``code`` has.

    ``time_travel``: files follow the conversation's checkpoints. A run that starts from an earlier one, and a
    copied thread, find the files as they were then. It requires a checkpointer and ``SandboxState`` in the
    graph's state, and a server with snapshots.

    Use ``stream_mode=["tools", "custom"]`` to receive the output of commands as they run. With
    "tools" alone LangGraph holds it back until the step ends.
    """
    check_session_options("sandbox_tools", options, _PARAMETERS)
    sandboxes = Sandboxes(client, environment=environment, name=name, **options)
    return build_tools(sandboxes, python=python, time_travel=time_travel)


def build_tools(sandboxes: Sandboxes, *, python: bool = False, time_travel: bool = False) -> list[BaseTool]:
    """``time_travel``: each call is a step of its own, unless the middleware has made it part of one."""
    specs = (*_TOOLS, _PYTHON) if python else _TOOLS
    return [_tool(sandboxes, time_travel, *spec) for spec in specs]


def _tool(
    sandboxes: Sandboxes,
    time_travel: bool,
    name: str,
    description: str,
    schema: type[BaseModel],
    operation: _Operation,
) -> BaseTool:
    def step_of(config: RunnableConfig, runtime: Runtime | None) -> Step | None:
        if not time_travel or surrounding_step(sandboxes, thread_of(config)) is not None:
            return None
        state, info = (None, None) if runtime is None else (runtime.state, runtime.execution_info)
        return Step.of(sandboxes, config, state, info)

    def run(config: RunnableConfig, runtime: InjectedRuntime = None, **given: Any) -> Output:
        call, step = Call.from_runtime(config, runtime), step_of(config, runtime)
        answer = perform(sandboxes, config, lambda session: operation(session, call, **given), step)
        return to_tool_output(answer, name, runtime, step)

    async def arun(config: RunnableConfig, runtime: InjectedRuntime = None, **given: Any) -> Output:
        call, step = Call.from_runtime(config, runtime, asyncio.get_running_loop()), step_of(config, runtime)
        answer = await aperform(sandboxes, config, lambda session: operation(session, call, **given), step)
        return to_tool_output(answer, name, runtime, step)

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
        answer = await toolbox.restart(session, before_exec=_previous_exec_id(call, command, background))
        if answer.failed or command is None:
            return answer
    if command is None:
        return Answer("[Missing command.]", failed=True)
    return await toolbox.bash(
        session,
        command,
        timeout_s=timeout_s,
        background=background,
        call_id=call.id,
        on_output=call.on_output,
        approved=call.approved,
    )


def _previous_exec_id(call: Call, command: str | None, background: bool) -> str | None:
    """The exec id that the call's command has if this call is a repetition."""
    if call.id is None or command is None:
        return None
    exec_id = exec_id_for_call(call.id, command)
    return job_id(exec_id) if background else exec_id


async def _edit_file(session: AsyncSession, call: Call, **given: Any) -> Answer:
    return await toolbox.edit_file(session, **given, call_id=call.id)


async def _python(session: AsyncSession, call: Call, **given: Any) -> Answer:
    return await toolbox.python(
        session, **given, call_id=call.id, on_output=call.on_output, approved=call.approved
    )


def _without_call(operation: Callable[..., Awaitable[Answer]]) -> _Operation:
    return lambda session, call, **given: operation(session, **given)


_TOOLS: Final[tuple[_Spec, ...]] = (
    ("bash", arguments.BASH, arguments.BashArguments, _bash),
    ("read_output", arguments.READ_OUTPUT, arguments.ReadOutputArguments, _without_call(toolbox.read_output)),
    ("stop", arguments.STOP, arguments.StopArguments, _without_call(toolbox.stop)),
    ("read_file", arguments.READ_FILE, arguments.ReadFileArguments, _without_call(toolbox.read_file)),
    ("write_file", arguments.WRITE_FILE, arguments.WriteFileArguments, _without_call(toolbox.write_file)),
    ("edit_file", arguments.EDIT_FILE, arguments.EditFileArguments, _edit_file),
    ("list_files", arguments.LIST_FILES, arguments.ListFilesArguments, _without_call(toolbox.list_files)),
    ("search", arguments.SEARCH, arguments.SearchArguments, _without_call(toolbox.search)),
    ("upload_file", arguments.UPLOAD_FILE, arguments.UploadFileArguments, _without_call(toolbox.upload_file)),
    (
        "download_file",
        arguments.DOWNLOAD_FILE,
        arguments.DownloadFileArguments,
        _without_call(toolbox.download_file),
    ),
)
_PYTHON: Final[_Spec] = ("python", arguments.PYTHON, arguments.PythonArguments, _python)

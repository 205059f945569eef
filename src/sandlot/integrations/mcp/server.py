"""``build_mcp``: an MCP server with the toolbox as its tools."""

from __future__ import annotations

import logging
import posixpath
from base64 import b64decode
from collections.abc import Awaitable, Callable
from inspect import getdoc
from typing import Annotated, Any, Final
from urllib.parse import quote

from mcp.server.mcpserver import Context, MCPServer
from mcp.types import (
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    TextContent,
    ToolAnnotations,
)
from pydantic import Field

import sandlot
from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import SandlotError, SessionEnded
from sandlot.domain.service import Catalogue
from sandlot.domain.session import DEFAULT_ENVIRONMENT
from sandlot.integrations import toolbox
from sandlot.integrations.mcp import outputs
from sandlot.integrations.mcp.outputs import tool_result, tool_result_as
from sandlot.integrations.mcp.progress import output_progress
from sandlot.integrations.mcp.thread_binding import ThreadBinding
from sandlot.integrations.model_text import DEFAULT_CHARACTERS, format_output, sandbox_prompt
from sandlot.integrations.toolbox import Answer
from sandlot.integrations.toolbox.commands import MAX_TIMEOUT_S, MAX_WAIT_S, TIMEOUT_S
from sandlot.integrations.toolbox.files import MAX_LINES
from sandlot.integrations.toolbox.pictures import is_viewable

MAX_MATCH_CHARACTERS: Final = 500
# After these errors the conversation needs a new sandbox, and the answer says how to get one.
_SANDBOX_GONE_CODES: Final = frozenset({"sandbox_lost", "sandbox_quarantined", "session_ended"})

READ_ONLY: Final = ToolAnnotations(read_only_hint=True, open_world_hint=False)
DESTRUCTIVE: Final = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)
IDEMPOTENT: Final = ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False
)

Ctx = Context[Any, Any]
Path = Annotated[str, Field(description="absolute, or relative to /workspace")]
Glob = Annotated[str | None, Field(description="only names that match, such as *.py")]
Job = Annotated[str, Field(description="the job's id, from execute")]


def build_mcp(
    thread_binding: ThreadBinding, catalogue: Catalogue, environment: str | None = None
) -> MCPServer[Any]:
    """``environment``: what new sandboxes are made from. If it has kernels, there is a Python tool."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    server: MCPServer[Any] = MCPServer(
        "sandlot",
        title="Sandlot sandbox",
        instructions=_instructions(catalogue),
        version=sandlot.__version__,
        subscriptions=False,
    )
    # The constructor reconfigures logging for the whole process. Undo that.
    root.handlers[:] = handlers
    root.setLevel(level)
    tools = _Tools(thread_binding)
    for tool, title, hints in (
        (tools.execute, "Run a command", DESTRUCTIVE),
        (tools.read_output, "Read a job's output", READ_ONLY),
        (tools.stop, "Stop a job", IDEMPOTENT),
        (tools.read_file, "Read a file", READ_ONLY),
        (tools.write_file, "Write a file", IDEMPOTENT),
        (tools.edit_file, "Edit a file", DESTRUCTIVE),
        (tools.list_files, "List files", READ_ONLY),
        (tools.search, "Search files", READ_ONLY),
        (tools.download, "Send a file to the user", READ_ONLY),
        (tools.reset, "Start over", DESTRUCTIVE),
    ):
        server.add_tool(tool, title=title, description=getdoc(tool), annotations=hints)
    used = environment or DEFAULT_ENVIRONMENT
    if any(each.contexts for each in catalogue.environments if each.name == used):
        python = tools.python
        server.add_tool(python, title="Run Python code", description=getdoc(python), annotations=DESTRUCTIVE)
    return server


def _instructions(catalogue: Catalogue) -> str:
    tool_names = (
        "The bash tool is called `execute` here. With background=true it starts a job; use "
        "`read_output` and `stop` with it. `reset` starts a new shell, and a new sandbox if the old "
        "one is lost."
    )
    return f"{sandbox_prompt(catalogue).rstrip()}\n\n{tool_names}".lstrip()


class _Tools:
    """Each public method is a tool. The model sees its name, its docstring and its parameters."""

    def __init__(self, thread_binding: ThreadBinding) -> None:
        self._thread_binding = thread_binding

    async def execute(
        self,
        ctx: Ctx,
        command: Annotated[str, Field(description="a bash command")],
        timeout_s: Annotated[
            float,
            Field(
                gt=0,
                le=MAX_TIMEOUT_S,
                description="seconds after which the command and everything it started are killed",
            ),
        ] = TIMEOUT_S,
        background: Annotated[
            bool, Field(description="start the command as a job and return at once; timeout_s does not apply")
        ] = False,
    ) -> Annotated[CallToolResult, outputs.CommandOutput]:
        """Run a command in the sandbox's shell. Working directory, variables and functions carry over to
        the next call. Returns the output, and the exit code if it is not 0. Long output is shortened in the
        middle and saved to a file. stdin is empty. With background=true it returns at once."""

        async def work(session: AsyncSession) -> Answer:
            async with output_progress(ctx) as on_output:
                return await toolbox.bash(
                    session, command, timeout_s=timeout_s, background=background, on_output=on_output
                )

        answer, notes = await self._call(ctx, work)
        # A command that ran and failed is a result. Only a command that could not run is an error.
        ran = "exit_code" in answer.data or "job" in answer.data
        return tool_result(answer, _command_output(answer) if ran else None, notes)

    async def python(
        self,
        ctx: Ctx,
        code: Annotated[str, Field(description="the code")],
        timeout_s: Annotated[
            float,
            Field(gt=0, le=MAX_TIMEOUT_S, description="seconds after which the code is interrupted"),
        ] = TIMEOUT_S,
        restart: Annotated[bool, Field(description="forget all variables first")] = False,
    ) -> Annotated[CallToolResult, outputs.CodeOutput]:
        """Run Python code in the sandbox. Variables, imports and functions carry over to the next call.
        Returns what it prints, the value of its last expression, a traceback if it fails, and the pictures
        that it displays, such as Matplotlib's."""

        async def work(session: AsyncSession) -> Answer:
            async with output_progress(ctx) as on_output:
                return await toolbox.python(
                    session, code, timeout_s=timeout_s, restart=restart, on_output=on_output
                )

        answer, notes = await self._call(ctx, work)
        notes += [ImageContent(data=each.base64, mime_type=each.media_type) for each in answer.pictures]
        # Code that ran and failed is a result. Only code that could not run is an error.
        data = None if "error" in answer.data else outputs.CodeOutput.model_validate(answer.data)
        return tool_result(answer, data, notes)

    async def read_output(
        self,
        ctx: Ctx,
        job: Job,
        since: Annotated[
            int, Field(ge=0, description="next_since of the previous call; 0 reads everything")
        ] = 0,
        wait_s: Annotated[
            float, Field(ge=0, le=MAX_WAIT_S, description="seconds to wait for the job to end")
        ] = 0,
    ) -> Annotated[CallToolResult, outputs.JobOutput]:
        """Read a background job's output, and whether it is still running."""
        answer, notes = await self._call(
            ctx, lambda session: toolbox.read_output(session, job, since=since, wait_s=wait_s)
        )
        return tool_result_as(outputs.JobOutput, answer, notes, output=answer.text)

    async def stop(self, ctx: Ctx, job: Job) -> Annotated[CallToolResult, outputs.StoppedJob]:
        """Stop a background job and everything it started."""
        answer, notes = await self._call(ctx, lambda session: toolbox.stop(session, job))
        return tool_result_as(outputs.StoppedJob, answer, notes)

    async def read_file(
        self,
        ctx: Ctx,
        path: Path,
        offset: Annotated[int, Field(ge=0, description="lines to skip")] = 0,
        lines: Annotated[int, Field(ge=1, le=MAX_LINES, description="maximum number of lines")] = MAX_LINES,
    ) -> Annotated[CallToolResult, outputs.FileText]:
        """Read a text file, with line numbers."""
        answer, notes = await self._call(
            ctx, lambda session: toolbox.read_file(session, path, offset=offset, lines=lines)
        )
        return tool_result_as(outputs.FileText, answer, notes, content=answer.text)

    async def write_file(
        self, ctx: Ctx, path: Path, content: Annotated[str, Field(description="the complete new content")]
    ) -> Annotated[CallToolResult, outputs.FileInfo]:
        """Create or replace a text file, with any missing parent folders."""
        answer, notes = await self._call(ctx, lambda session: toolbox.write_file(session, path, content))
        return tool_result_as(outputs.FileInfo, answer, notes)

    async def edit_file(
        self,
        ctx: Ctx,
        path: Path,
        old: Annotated[str, Field(description="the text to replace, exactly as in the file")],
        new: Annotated[str, Field(description="the replacement text")],
        replace_all: Annotated[
            bool, Field(description="replace every occurrence; otherwise it must occur exactly once")
        ] = False,
    ) -> Annotated[CallToolResult, outputs.EditedFile]:
        """Replace text in a file. The old text must occur exactly once, unless replace_all is set."""
        answer, notes = await self._call(
            ctx, lambda session: toolbox.edit_file(session, path, old, new, replace_all=replace_all)
        )
        return tool_result_as(outputs.EditedFile, answer, notes)

    async def list_files(
        self,
        ctx: Ctx,
        path: Path = ".",
        depth: Annotated[int, Field(ge=0, description="how many levels to list; 0 lists all")] = 1,
        glob: Glob = None,
    ) -> Annotated[CallToolResult, outputs.Listing]:
        """List the files of a folder."""
        answer, notes = await self._call(
            ctx, lambda session: toolbox.list_files(session, path, depth=depth, glob=glob)
        )
        return tool_result_as(outputs.Listing, answer, notes)

    async def search(
        self,
        ctx: Ctx,
        pattern: Annotated[str, Field(min_length=1, description="text that the line contains")],
        path: Path = ".",
        regex: Annotated[bool, Field(description="treat the pattern as a regular expression")] = False,
        ignore_case: bool = False,
        glob: Glob = None,
    ) -> Annotated[CallToolResult, outputs.Matches]:
        """Search files for lines that contain a text."""
        answer, notes = await self._call(
            ctx,
            lambda session: toolbox.search(
                session, pattern, path, regex=regex, ignore_case=ignore_case, glob=glob
            ),
        )
        found = [
            {**match, "text": match["text"][:MAX_MATCH_CHARACTERS]}
            for match in answer.data.get("matches", ())
        ]
        return tool_result_as(outputs.Matches, answer, notes, matches=found)

    async def download(self, ctx: Ctx, path: Path) -> Annotated[CallToolResult, outputs.HandedFile]:
        """Send a file to the user. Images are shown; other content is attached as a resource."""
        answer, notes = await self._call(ctx, lambda session: toolbox.download_file(session, path))
        if not answer.failed:
            notes.append(_attachment(answer.data))
        return tool_result_as(outputs.HandedFile, answer, notes)

    async def reset(self, ctx: Ctx) -> Annotated[CallToolResult, outputs.NewStart]:
        """Start a new shell; files are unchanged. If the sandbox is lost, this creates a new one with the
        files that were kept. If its session has ended, this creates a new, empty one."""
        new = False

        async def work(session: AsyncSession) -> Answer:
            nonlocal new
            generation = session.generation
            answer = await toolbox.restart(session)
            new = session.created or session.generation != generation
            return answer

        answer, notes = await self._call(ctx, work)
        if answer.data.get("error") == SessionEnded.code:
            self._thread_binding.forget()
            answer, notes = await self._call(ctx, work)
        return tool_result_as(outputs.NewStart, answer, notes, new_sandbox=new)

    async def _call(
        self, ctx: Ctx, work: Callable[[AsyncSession], Awaitable[Answer]]
    ) -> tuple[Answer, list[ContentBlock]]:
        """Run ``work`` and return its answer with notes. A ``SandlotError`` becomes an answer."""
        notes: list[ContentBlock] = []
        try:
            session = await self._thread_binding.session(ctx)
            answer = await work(session)
        except SandlotError as error:
            answer = Answer.from_error(error)
        else:
            if session.created:
                # In a longer conversation this note reveals that the earlier sandbox had expired.
                notes.append(TextContent(text="[a new, empty sandbox was created for this call]"))
        if answer.data.get("error") in _SANDBOX_GONE_CODES:
            notes.append(TextContent(text="[call the tool reset to get a new sandbox]"))
        return answer, notes


def _command_output(answer: Answer) -> outputs.CommandOutput:
    data = dict(answer.data)
    limit = DEFAULT_CHARACTERS // 2 if data.get("stderr") else DEFAULT_CHARACTERS
    for channel in ("stdout", "stderr"):
        if channel in data:
            text = data[channel].encode("utf-8", "replace")
            data[channel] = format_output(text, limit, data["output_path"]) if text.strip() else ""
    return outputs.CommandOutput.model_validate(data)


def _attachment(data: dict[str, Any]) -> ContentBlock:
    if is_viewable(data["mime_type"], data["size"], b64decode(data["base64"][:64])):
        return ImageContent(data=data["base64"], mime_type=data["mime_type"])
    path = quote(posixpath.join("/workspace", data["path"]), errors="replace")
    content = BlobResourceContents(uri=f"file://{path}", mime_type=data["mime_type"], blob=data["base64"])
    return EmbeddedResource(resource=content)

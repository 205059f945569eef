"""The tools, said in the words of the protocol: ``build_mcp``."""

from __future__ import annotations

import logging
import posixpath
import re
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
from sandlot.integrations import toolbox
from sandlot.integrations.mcp import outputs
from sandlot.integrations.mcp.live import live_output
from sandlot.integrations.mcp.outputs import outcome, told_as
from sandlot.integrations.mcp.whose import Whose
from sandlot.integrations.model_text import DEFAULT_CHARACTERS, sandbox_prompt, shown
from sandlot.integrations.toolbox import Answer
from sandlot.integrations.toolbox.commands import MAX_TIMEOUT_S, READ_OUTPUT_S, TIMEOUT_S
from sandlot.integrations.toolbox.files import LINES

MATCH_CHARACTERS: Final = 500
# What models can look at, and how each begins. Other content is handed to the client as a file: an image that
# is none, or too large for a model's service, would stay in the conversation and spoil every later turn.
PICTURES: Final = {
    "image/png": rb"\x89PNG\r\n\x1a\n",
    "image/jpeg": rb"\xff\xd8\xff",
    "image/gif": rb"GIF8[79]a",
    "image/webp": rb"RIFF....WEBP",
}
PICTURE_BYTES: Final = 3_500_000
# Over these a conversation needs a new sandbox, and the model has to be told how to ask for it.
_GONE: Final = frozenset({"sandbox_lost", "sandbox_quarantined", "session_ended"})

LOOKS: Final = ToolAnnotations(read_only_hint=True, open_world_hint=False)
CHANGES: Final = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)
REPEATABLE: Final = ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False
)

Ctx = Context[Any, Any]
Path = Annotated[str, Field(description="absolute, or relative to /workspace")]
Glob = Annotated[str | None, Field(description="names that count, such as *.py")]
Job = Annotated[str, Field(description="its name, as execute gave it")]


def build_mcp(whose: Whose, catalogue: Catalogue) -> MCPServer[Any]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    server: MCPServer[Any] = MCPServer(
        "sandlot",
        title="Sandlot sandbox",
        instructions=_instructions(catalogue),
        version=sandlot.__version__,
        subscriptions=False,
    )
    # Its constructor sets up the logs of the whole process, which are not its own.
    root.handlers[:] = handlers
    root.setLevel(level)
    tools = _Tools(whose)
    for tool, title, hints in (
        (tools.execute, "Run a command", CHANGES),
        (tools.read_output, "Read a job's output", LOOKS),
        (tools.stop, "Stop a job", REPEATABLE),
        (tools.read_file, "Read a file", LOOKS),
        (tools.write_file, "Write a file", REPEATABLE),
        (tools.edit_file, "Edit a file", CHANGES),
        (tools.list_files, "List files", LOOKS),
        (tools.search, "Search in files", LOOKS),
        (tools.download, "Hand out a file", LOOKS),
        (tools.reset, "Start anew", CHANGES),
    ):
        server.add_tool(tool, title=title, description=getdoc(tool), annotations=hints)
    return server


def _instructions(catalogue: Catalogue) -> str:
    here = (
        "The bash tool is `execute` here: with background=true it starts a job, which `read_output` and "
        "`stop` are for. `reset` gives a new shell, and a new sandbox where the old one is gone."
    )
    return f"{sandbox_prompt(catalogue).rstrip()}\n\n{here}".lstrip()


class _Tools:
    """Each method is a tool: its name, its docstring and its parameters are what a model sees."""

    def __init__(self, whose: Whose) -> None:
        self._whose = whose

    async def execute(
        self,
        ctx: Ctx,
        command: Annotated[str, Field(description="as for bash")],
        timeout_s: Annotated[
            float,
            Field(gt=0, le=MAX_TIMEOUT_S, description="seconds after which it and all it started is ended"),
        ] = TIMEOUT_S,
        background: Annotated[
            bool, Field(description="start it as a job and do not wait for its end; timeout_s does not apply")
        ] = False,
    ) -> Annotated[CallToolResult, outputs.CommandOutput]:
        """Run a command in the sandbox's shell. Working directory, variables and functions stay from one call
        to the next. Answers with the output and, unless it is 0, the exit code; long output is shortened in
        the middle and kept in a file. Standard input is empty. With background=true it answers at once."""

        async def work(session: AsyncSession) -> Answer:
            async with live_output(ctx) as on_output:
                return await toolbox.bash(
                    session, command, timeout_s=timeout_s, background=background, on_output=on_output
                )

        answer, notes = await self._ask(ctx, work)
        # A command that failed has run: that is a result, and only what kept it from running is an error.
        ran = "exit_code" in answer.data or "job" in answer.data
        return outcome(answer, _command_output(answer) if ran else None, notes)

    async def read_output(
        self,
        ctx: Ctx,
        job: Job,
        since: Annotated[int, Field(ge=0, description="next_since of the call before; 0: all")] = 0,
        wait_s: Annotated[
            float, Field(ge=0, le=READ_OUTPUT_S, description="seconds to wait for the job's end")
        ] = 0,
    ) -> Annotated[CallToolResult, outputs.JobOutput]:
        """Read what a background job has written, and whether it still runs."""
        answer, notes = await self._ask(
            ctx, lambda session: toolbox.read_output(session, job, since=since, wait_s=wait_s)
        )
        return told_as(outputs.JobOutput, answer, notes, output=answer.text)

    async def stop(self, ctx: Ctx, job: Job) -> Annotated[CallToolResult, outputs.StoppedJob]:
        """End a background job, with all that it has started."""
        answer, notes = await self._ask(ctx, lambda session: toolbox.stop(session, job))
        return told_as(outputs.StoppedJob, answer, notes)

    async def read_file(
        self,
        ctx: Ctx,
        path: Path,
        offset: Annotated[int, Field(ge=0, description="lines to skip")] = 0,
        lines: Annotated[int, Field(ge=1, le=LINES, description="how many at most")] = LINES,
    ) -> Annotated[CallToolResult, outputs.FileText]:
        """Read a text file, with line numbers."""
        answer, notes = await self._ask(
            ctx, lambda session: toolbox.read_file(session, path, offset=offset, lines=lines)
        )
        return told_as(outputs.FileText, answer, notes, content=answer.text)

    async def write_file(
        self, ctx: Ctx, path: Path, content: Annotated[str, Field(description="the whole new content")]
    ) -> Annotated[CallToolResult, outputs.FileInfo]:
        """Write a text file, replacing what was there; missing folders are made."""
        answer, notes = await self._ask(ctx, lambda session: toolbox.write_file(session, path, content))
        return told_as(outputs.FileInfo, answer, notes)

    async def edit_file(
        self,
        ctx: Ctx,
        path: Path,
        old: Annotated[str, Field(description="the text to be replaced, exactly as it is in the file")],
        new: Annotated[str, Field(description="the text in its place")],
        replace_all: Annotated[bool, Field(description="wherever it is, not only where it is once")] = False,
    ) -> Annotated[CallToolResult, outputs.EditedFile]:
        """Replace text in a file. The old text must be in it once, unless replace_all is set."""
        answer, notes = await self._ask(
            ctx, lambda session: toolbox.edit_file(session, path, old, new, replace_all=replace_all)
        )
        return told_as(outputs.EditedFile, answer, notes)

    async def list_files(
        self,
        ctx: Ctx,
        path: Path = ".",
        depth: Annotated[int, Field(ge=0, description="how far down; 0: to the bottom")] = 1,
        glob: Glob = None,
    ) -> Annotated[CallToolResult, outputs.Listing]:
        """List the files of a folder."""
        answer, notes = await self._ask(
            ctx, lambda session: toolbox.list_files(session, path, depth=depth, glob=glob)
        )
        return told_as(outputs.Listing, answer, notes)

    async def search(
        self,
        ctx: Ctx,
        pattern: Annotated[str, Field(min_length=1, description="text that a line contains")],
        path: Path = ".",
        regex: Annotated[bool, Field(description="the pattern is a regular expression")] = False,
        ignore_case: bool = False,
        glob: Glob = None,
    ) -> Annotated[CallToolResult, outputs.Matches]:
        """Find the lines in files that contain a text."""
        answer, notes = await self._ask(
            ctx,
            lambda session: toolbox.search(
                session, pattern, path, regex=regex, ignore_case=ignore_case, glob=glob
            ),
        )
        found = [
            {**match, "text": match["text"][:MATCH_CHARACTERS]} for match in answer.data.get("matches", ())
        ]
        return told_as(outputs.Matches, answer, notes, matches=found)

    async def download(self, ctx: Ctx, path: Path) -> Annotated[CallToolResult, outputs.HandedFile]:
        """Hand a file out to the user: pictures are shown, other content is attached as a resource."""
        answer, notes = await self._ask(ctx, lambda session: toolbox.download_file(session, path))
        if not answer.failed:
            notes.append(_attachment(answer.data))
        return told_as(outputs.HandedFile, answer, notes)

    async def reset(self, ctx: Ctx) -> Annotated[CallToolResult, outputs.NewStart]:
        """Start a new shell; files stay as they are. If the sandbox is lost or its session has ended, this
        gives a new, empty sandbox: nothing of the old one is in it."""
        new = False

        async def work(session: AsyncSession) -> Answer:
            nonlocal new
            generation = session.generation
            answer = await toolbox.restart(session)
            new = session.created or session.generation != generation
            return answer

        answer, notes = await self._ask(ctx, work)
        if answer.data.get("error") == SessionEnded.code:
            self._whose.forget()
            answer, notes = await self._ask(ctx, work)
        return told_as(outputs.NewStart, answer, notes, new_sandbox=new)

    async def _ask(
        self, ctx: Ctx, work: Callable[[AsyncSession], Awaitable[Answer]]
    ) -> tuple[Answer, list[ContentBlock]]:
        """The answer, and what has to be said beside it. No error of ours gets past this."""
        notes: list[ContentBlock] = []
        try:
            session = await self._whose.session(ctx)
            answer = await work(session)
        except SandlotError as error:
            answer = Answer.of_error(error)
        else:
            if session.created:
                # Where a conversation goes on, this tells that its sandbox had ended by its timeouts.
                notes.append(TextContent(text="[a new, empty sandbox was made for this call]"))
        if answer.data.get("error") in _GONE:
            notes.append(TextContent(text="[the tool reset gives a new, empty sandbox]"))
        return answer, notes


def _command_output(answer: Answer) -> outputs.CommandOutput:
    data = dict(answer.data)
    limit = DEFAULT_CHARACTERS // 2 if data.get("stderr") else DEFAULT_CHARACTERS
    for channel in ("stdout", "stderr"):
        if channel in data:
            text = data[channel].encode("utf-8", "replace")
            data[channel] = shown(text, limit, data["output_path"]) if text.strip() else ""
    return outputs.CommandOutput.model_validate(data)


def _is_picture(data: dict[str, Any]) -> bool:
    begins = PICTURES.get(data["mime_type"])
    if begins is None or data["size"] > PICTURE_BYTES:
        return False
    return re.match(begins, b64decode(data["base64"][:64]), re.DOTALL) is not None


def _attachment(data: dict[str, Any]) -> ContentBlock:
    if _is_picture(data):
        return ImageContent(data=data["base64"], mime_type=data["mime_type"])
    path = quote(posixpath.join("/workspace", data["path"]), errors="replace")
    content = BlobResourceContents(uri=f"file://{path}", mime_type=data["mime_type"], blob=data["base64"])
    return EmbeddedResource(resource=content)

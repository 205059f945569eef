"""The structured output of the tools. The JSON schemas are published with the tools.

Some clients show the model the data and not the text. So both contain all that the model needs, and
both are short.
"""

from __future__ import annotations

from collections.abc import Sequence

from mcp.types import CallToolResult, ContentBlock, TextContent
from pydantic import BaseModel, Field

from sandlot.integrations.model_text import DEFAULT_CHARACTERS, shorten
from sandlot.integrations.toolbox import Answer


class CommandOutput(BaseModel):
    """Of a command in the background only ``job`` is known yet."""

    exit_code: int | None = Field(default=None, description="null: it runs in the background")
    stdout: str = Field(default="", description="with stderr, in the order in which they were written")
    stderr: str = Field(default="", description="empty where stdout has both")
    verdict: str | None = Field(default=None, description="ok, nonzero, timeout, oom, disk_full, killed, ...")
    timed_out: bool = False
    truncated: bool = Field(default=False, description="not all of the output was kept")
    duration_ms: float | None = None
    output_bytes: int | None = Field(default=None, description="all that it wrote")
    output_path: str | None = Field(default=None, description="the file with the output, if it was shortened")
    job: str | None = Field(default=None, description="the name for read_output and stop")
    session_id: str
    generation: int = Field(description="grows when a lost sandbox was replaced")


class JobOutput(BaseModel):
    job: str
    running: bool
    output: str
    next_since: int = Field(description="`since` for what comes next")
    exit_code: int | None = None


class StoppedJob(BaseModel):
    job: str
    signalled: int = Field(description="how many processes were ended; 0: it had ended before")


class FileText(BaseModel):
    path: str
    content: str = Field(description="numbered lines")
    lines: int
    next_offset: int | None = Field(description="`offset` for the lines that follow, if there are any")


class FileInfo(BaseModel):
    path: str
    type: str
    size: int


class EditedFile(FileInfo):
    replaced: int


class Listing(BaseModel):
    path: str
    entries: list[FileInfo]
    truncated: bool


class Match(BaseModel):
    path: str
    line: int
    text: str


class Matches(BaseModel):
    matches: list[Match]
    truncated: bool


class HandedFile(BaseModel):
    """Its content is in the block beside."""

    path: str
    name: str
    size: int
    mime_type: str


class NewStart(BaseModel):
    new_sandbox: bool = Field(description="false: a new shell in the same sandbox, whose files are as before")


def tool_result(answer: Answer, data: BaseModel | None, notes: Sequence[ContentBlock] = ()) -> CallToolResult:
    """Build a tool's result. ``data`` None means failure, which the protocol calls a tool error."""
    text = TextContent(text=shorten(answer.text, 2 * DEFAULT_CHARACTERS))
    return CallToolResult(
        content=[text, *notes],
        structured_content=None if data is None else data.model_dump(mode="json"),
        is_error=data is None,
    )


def tool_result_as(
    model: type[BaseModel], answer: Answer, notes: Sequence[ContentBlock], **extra: object
) -> CallToolResult:
    """Build a tool's result with the answer's data and ``extra`` as the fields of ``model``."""
    return tool_result(answer, None if answer.failed else model.model_validate(answer.data | extra), notes)

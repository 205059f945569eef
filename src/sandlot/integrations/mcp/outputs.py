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
    """The result of a command. For a background command, only ``job`` is set."""

    exit_code: int | None = Field(default=None, description="null while the command runs in the background")
    stdout: str = Field(
        default="", description="stdout and stderr together, in the order in which they were written"
    )
    stderr: str = Field(default="", description="empty if stdout contains both")
    verdict: str | None = Field(default=None, description="ok, nonzero, timeout, oom, disk_full, killed, ...")
    denied: list[dict[str, str]] = Field(
        default=[], description="the connections that the network policy denied: target, rule, why, ask"
    )
    timed_out: bool = False
    truncated: bool = Field(default=False, description="whether some of the output was not kept")
    duration_ms: float | None = None
    output_bytes: int | None = Field(default=None, description="how many bytes the command wrote")
    output_path: str | None = Field(
        default=None, description="file with the full output, if the output was shortened"
    )
    job: str | None = Field(default=None, description="the job's id, for read_output and stop")
    session_id: str
    generation: int = Field(description="grows by one each time a lost sandbox is replaced")


class CodeError(BaseModel):
    name: str
    value: str
    traceback: str


class CodeOutput(BaseModel):
    """The result of code. Pictures are separate content blocks."""

    text: str = Field(default="", description="the value of the last expression")
    stdout: str = ""
    stderr: str = ""
    exception: CodeError | None = Field(default=None, description="what the code raised")
    execution_count: int | None = None
    verdict: str | None = Field(default=None, description="ok, nonzero, timeout, oom, killed, ...")
    timed_out: bool = False
    truncated: bool = Field(default=False, description="whether some of what it wrote was not kept")
    duration_ms: float | None = None
    session_id: str = ""
    generation: int = 0


class JobOutput(BaseModel):
    job: str
    running: bool
    output: str
    next_since: int = Field(description="pass this as `since` to read what follows")
    exit_code: int | None = None


class StoppedJob(BaseModel):
    job: str
    signalled: int = Field(description="how many processes were killed; 0 if the job had already ended")


class FileText(BaseModel):
    path: str
    content: str = Field(description="numbered lines")
    lines: int
    next_offset: int | None = Field(
        description="pass this as `offset` to read the following lines; null at the end"
    )


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
    """A file sent to the user. Its content is in a separate content block."""

    path: str
    name: str
    size: int
    mime_type: str


class NewStart(BaseModel):
    new_sandbox: bool = Field(description="false: a new shell in the same sandbox, with its files unchanged")


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

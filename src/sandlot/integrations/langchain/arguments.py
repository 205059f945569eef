"""The description and the argument schema of each tool, as the model sees them."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, Field

from sandlot.integrations.toolbox.commands import MAX_TIMEOUT_S, MAX_WAIT_S, OUTPUT_FOLDER, TIMEOUT_S

PATH: Final = "Absolute, or relative to /workspace."

BASH: Final = f"""\
Run a bash command in this conversation's sandbox, an isolated Linux computer that persists between calls.

- The shell persists: working directory, variables and functions carry over to the next call.
  It starts in /workspace.
- stdin is empty and there is no terminal, so nothing interactive works: pass options, pipe input in, or
  write a script.
- There is no root, and no network except for allowed hosts. A note says what was denied.
- Output comes back merged, with the exit code if it is not 0. Long output is shortened to
  its head and tail; the result names a file under {OUTPUT_FOLDER} with all of it.
- After timeout_s seconds, the command and everything it started are killed. You get the output so far.
- Servers and long work: background=true. It returns a job at once; see read_output and stop.
- restart=true starts a new shell. If the sandbox is lost, it creates a new one; nothing else does."""


class BashArguments(BaseModel):
    command: str | None = Field(None, description="The command. It may have several lines.")
    timeout_s: float = Field(
        TIMEOUT_S,
        gt=0,
        le=MAX_TIMEOUT_S,
        description="Seconds until the command is killed. Ignored in the background.",
    )
    background: bool = Field(False, description="Start the command as a background job and return at once.")
    restart: bool = Field(
        False,
        description="Start a new shell first, or a new sandbox if the old one is lost. Needs no command.",
    )


PYTHON: Final = f"""\
Run Python code in this conversation's sandbox. Variables, imports and functions stay for the next call.

- You get what it prints, the value of its last expression, and a traceback if it fails.
- You see pictures that it displays, such as Matplotlib's. Save files in /workspace, where bash finds them.
- After timeout_s seconds (at most {MAX_TIMEOUT_S:.0f}) the code is interrupted; its variables stay.
- restart=true forgets all variables first."""


class PythonArguments(BaseModel):
    code: str = Field(description="The code. It may have several lines.")
    timeout_s: float = Field(
        TIMEOUT_S, gt=0, le=MAX_TIMEOUT_S, description="Seconds until the code is interrupted."
    )
    restart: bool = Field(False, description="Forget all variables first.")


READ_OUTPUT: Final = "Show a background job's output and whether it is still running."


class ReadOutputArguments(BaseModel):
    job: str = Field(description="The job's id, from the bash tool.")
    since: int = Field(
        0, ge=0, description="Offset to continue from. The previous result says where it ended."
    )
    wait_s: float = Field(
        0, ge=0, le=MAX_WAIT_S, description="Seconds to wait for the job to end before reading."
    )


STOP: Final = "Stop a background job and everything it started."


class StopArguments(BaseModel):
    job: str = Field(description="The job's id, from the bash tool.")


READ_FILE: Final = "Show a text file of the sandbox with line numbers. Read a long file in pieces."


class ReadFileArguments(BaseModel):
    path: str = Field(description=PATH)
    offset: int = Field(0, ge=0, description="How many lines to skip at the beginning.")
    lines: int = Field(2000, ge=1, description="Maximum number of lines to show.")


WRITE_FILE: Final = """\
Create or replace a text file in the sandbox, with any missing parent folders. The file can be large.
To change part of a file, use edit_file."""


class WriteFileArguments(BaseModel):
    path: str = Field(description=PATH)
    content: str = Field(description="The complete new content.")


EDIT_FILE: Final = """\
Replace text in a file of the sandbox. Give the old text exactly, with its indentation but without line
numbers, and with enough context that it occurs only once."""


class EditFileArguments(BaseModel):
    path: str = Field(description=PATH)
    old: str = Field(description="The text to replace.")
    new: str = Field(description="The replacement text.")
    replace_all: bool = Field(False, description="Replace every occurrence.")


LIST_FILES: Final = "List a folder of the sandbox: files with their sizes, folders with a trailing slash."


class ListFilesArguments(BaseModel):
    path: str = Field(".", description=PATH)
    depth: int = Field(1, ge=0, description="How many levels to list. 0 lists all.")
    glob: str | None = Field(
        None, description="Only names that match, such as *.py. Usually combined with depth=0."
    )


SEARCH: Final = "Search the sandbox's files for matching lines. Returns path, line number and line."


class SearchArguments(BaseModel):
    pattern: str = Field(
        description="What to search for: plain text, or a regular expression with regex=true."
    )
    path: str = Field(".", description=f"A file, or a folder to search with everything below it. {PATH}")
    regex: bool = Field(False, description="Treat the pattern as a regular expression.")
    ignore_case: bool = Field(False, description="Ignore case.")
    glob: str | None = Field(None, description="Only search files whose names match, such as *.py.")


UPLOAD_FILE: Final = "Write a binary file into the sandbox, from base64. For text, use write_file."


class UploadFileArguments(BaseModel):
    path: str = Field(description=PATH)
    content_base64: str = Field(description="The content, as base64.")


DOWNLOAD_FILE: Final = """\
Send a file from the sandbox to the user: an image, a table, a report, an archive.
You do not see its content."""


class DownloadFileArguments(BaseModel):
    path: str = Field(description=PATH)

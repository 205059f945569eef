"""The operations that a model can perform in a sandbox, as functions on a session.

Each function returns an ``Answer``, also for an error that the model can act on. The LangChain
tools and the MCP server are built from these functions.
"""

from sandlot.integrations.toolbox.answer import Answer, answer_or_raise
from sandlot.integrations.toolbox.code import python
from sandlot.integrations.toolbox.commands import bash, read_output, restart, stop
from sandlot.integrations.toolbox.files import (
    download_file,
    edit_file,
    list_files,
    read_file,
    search,
    upload_file,
    write_file,
)

__all__ = [
    "Answer",
    "answer_or_raise",
    "bash",
    "download_file",
    "edit_file",
    "list_files",
    "python",
    "read_file",
    "read_output",
    "restart",
    "search",
    "stop",
    "upload_file",
    "write_file",
]

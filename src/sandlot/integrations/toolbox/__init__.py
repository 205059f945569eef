"""What a model can do in a sandbox, as functions on a session; every one answers, and none raises at a model.

LangChain's tools and those of the MCP server are these, said in the words of each.
"""

from sandlot.integrations.toolbox.answer import Answer, refusal
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
    "bash",
    "download_file",
    "edit_file",
    "list_files",
    "read_file",
    "read_output",
    "refusal",
    "restart",
    "search",
    "stop",
    "upload_file",
    "write_file",
]

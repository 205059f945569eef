"""Where the framework's own files are kept.

Deep Agents puts large results, offloaded media and the history of a conversation into folders at the root,
where the sandbox's user may not write. Under these names the backend keeps them in the workspace.
"""

from __future__ import annotations

from typing import Final

WORKSPACE: Final = "/workspace"
KEPT_IN: Final = f"{WORKSPACE}/.deepagents"
_FOLDERS: Final = frozenset({"large_tool_results", "conversation_history", "blobs"})


def real_path(path: str) -> str:
    """The path in the sandbox of what the framework calls so."""
    folder = path[1:].partition("/")[0] if path.startswith("/") else ""
    return KEPT_IN + path if folder in _FOLDERS else path


def shown_path(path: str, asked: str) -> str:
    """The name, under the folder that was asked for, of something found below its real place."""
    real = real_path(asked).rstrip("/")
    return asked.rstrip("/") + path[len(real) :] if path.startswith(f"{real}/") else path

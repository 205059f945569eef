"""Maps the framework's own folders to the workspace.

Deep Agents writes large results, offloaded media and conversation history to folders at the root,
where the sandbox's user may not write. The backend stores them in the workspace and shows them
under their original names.
"""

from __future__ import annotations

from typing import Final

WORKSPACE: Final = "/workspace"
ARTIFACTS_FOLDER: Final = f"{WORKSPACE}/.deepagents"
_FRAMEWORK_FOLDERS: Final = frozenset({"large_tool_results", "conversation_history", "blobs"})


def sandbox_path(path: str) -> str:
    """The path in the sandbox for a path that the framework uses."""
    folder = path[1:].partition("/")[0] if path.startswith("/") else ""
    return ARTIFACTS_FOLDER + path if folder in _FRAMEWORK_FOLDERS else path


def framework_path(path: str, requested: str) -> str:
    """The framework's name for a path that was found in the sandbox below the requested folder."""
    real = sandbox_path(requested).rstrip("/")
    return requested.rstrip("/") + path[len(real) :] if path.startswith(f"{real}/") else path

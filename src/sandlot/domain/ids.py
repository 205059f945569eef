"""Identifiers.

Generated ids carry 96 random bits or more: they are unguessable.
"""

from __future__ import annotations

import re
import secrets

_EXEC_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SANDBOX_ID = re.compile(r"sbx_[0-9a-f]{32}")
_SHELL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SESSION_ID = re.compile(r"ses_[0-9a-f]{32}")
_WORKSPACE_ID = re.compile(r"wsp_[0-9a-f]{32}")
_SNAPSHOT_ID = re.compile(r"snp_([0-9a-f]{8})[0-9a-f]{24}")
_VOLUME_ID = re.compile(r"vol_([0-9a-f]{8})[0-9a-f]{24}")
_ARTIFACT_ID = re.compile(r"art_([0-9a-f]{8})[0-9a-f]{24}")
# The caller chooses a conversation's id. Frameworks differ, so it only has to be printable and
# bounded.
_THREAD = re.compile(r"[\x21-\x7e]{1,200}")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def new_sandbox_id() -> str:
    return "sbx_" + secrets.token_hex(16)


def new_exec_id() -> str:
    return "exec_" + secrets.token_hex(16)


def new_session_id() -> str:
    return "ses_" + secrets.token_hex(16)


def new_workspace_id() -> str:
    return "wsp_" + secrets.token_hex(16)


def first_workspace_of(sandbox_id: str) -> str:
    """The id of the workspace that a sandbox is made with."""
    return "wsp_" + sandbox_id.removeprefix("sbx_")


def new_snapshot_id(tag: str) -> str:
    """``tag``: of the worker that has it. So a fleet finds the worker by the id."""
    return f"snp_{tag}{secrets.token_hex(12)}"


def snapshot_tag(snapshot_id: str) -> str | None:
    """The tag of the worker that took the snapshot; None if this is no snapshot's id."""
    match = _SNAPSHOT_ID.fullmatch(snapshot_id)
    return None if match is None else match[1]


def new_artifact_id(tag: str) -> str:
    """``tag``: of the worker that has it, as for snapshots."""
    return f"art_{tag}{secrets.token_hex(12)}"


def artifact_tag(artifact_id: str) -> str | None:
    """The tag of the worker that has the artifact; None if this is no artifact's id."""
    match = _ARTIFACT_ID.fullmatch(artifact_id)
    return None if match is None else match[1]


def new_volume_id(tag: str) -> str:
    """``tag``: of the worker that has it, as for snapshots."""
    return f"vol_{tag}{secrets.token_hex(12)}"


def volume_tag(volume_id: str) -> str | None:
    """The tag of the worker that has the volume; None if this is no volume's id."""
    match = _VOLUME_ID.fullmatch(volume_id)
    return None if match is None else match[1]


def is_volume_id(text: str) -> bool:
    return _VOLUME_ID.fullmatch(text) is not None


def is_workspace_id(text: str) -> bool:
    return _WORKSPACE_ID.fullmatch(text) is not None


def is_snapshot_id(text: str) -> bool:
    return _SNAPSHOT_ID.fullmatch(text) is not None


def is_session_id(text: str) -> bool:
    return _SESSION_ID.fullmatch(text) is not None


def is_thread(text: str) -> bool:
    return _THREAD.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """Whether ``text`` is a valid name for an environment, tool, prompt, agent or volume."""
    return _NAME.fullmatch(text) is not None


def is_sandbox_id(text: str) -> bool:
    return _SANDBOX_ID.fullmatch(text) is not None


def is_exec_id(text: str) -> bool:
    return _EXEC_ID.fullmatch(text) is not None


def is_shell_name(text: str) -> bool:
    return _SHELL_NAME.fullmatch(text) is not None

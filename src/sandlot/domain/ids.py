"""Identifiers.

Generated ids of sandboxes, execs and sessions carry 128 random bits: they are unguessable.
"""

from __future__ import annotations

import re
import secrets

_EXEC_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SANDBOX_ID = re.compile(r"sbx_[0-9a-f]{32}")
_SHELL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SESSION_ID = re.compile(r"ses_[0-9a-f]{32}")
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


def is_session_id(text: str) -> bool:
    return _SESSION_ID.fullmatch(text) is not None


def is_thread(text: str) -> bool:
    return _THREAD.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """Whether ``text`` is a valid name for an environment, tool, prompt or agent."""
    return _NAME.fullmatch(text) is not None


def is_sandbox_id(text: str) -> bool:
    return _SANDBOX_ID.fullmatch(text) is not None


def is_exec_id(text: str) -> bool:
    return _EXEC_ID.fullmatch(text) is not None


def is_shell_name(text: str) -> bool:
    return _SHELL_NAME.fullmatch(text) is not None

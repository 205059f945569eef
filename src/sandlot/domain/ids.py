"""Identifiers. All that name something secret-adjacent carry at least 128 random bits."""

from __future__ import annotations

import re
import secrets

_EXEC_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SANDBOX_ID = re.compile(r"sbx_[0-9a-f]{32}")
_SHELL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def new_sandbox_id() -> str:
    return "sbx_" + secrets.token_hex(16)


def new_exec_id() -> str:
    return "exec_" + secrets.token_hex(16)


def is_sandbox_id(text: str) -> bool:
    return _SANDBOX_ID.fullmatch(text) is not None


def is_exec_id(text: str) -> bool:
    return _EXEC_ID.fullmatch(text) is not None


def is_shell_name(text: str) -> bool:
    return _SHELL_NAME.fullmatch(text) is not None

"""Refuses unsupported requests, and converts Sandlot's errors to the framework's."""

from __future__ import annotations

from pathlib import Path

from agents.sandbox import Manifest
from agents.sandbox.errors import (
    SandboxError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceStartError,
)
from agents.sandbox.types import User

from sandlot.domain.errors import SandlotError


def refuse_user(user: str | User | None) -> None:
    if user is not None:
        raise ValueError("A sandbox has a single user. Leave out user and run_as.")


def refuse_accounts(manifest: Manifest) -> None:
    if manifest.users or manifest.groups:
        raise ValueError("A sandbox has a single user. Leave users and groups out of the manifest.")


def error_text(error: SandlotError) -> str:
    return f"{error.code}: {error.message}"


def start_error(manifest: Manifest, error: SandlotError) -> SandboxError:
    return WorkspaceStartError(
        path=Path(manifest.root), message=error_text(error), cause=error, retryable=error.retryable
    )


def read_error(path: Path, error: SandlotError) -> SandboxError:
    return WorkspaceArchiveReadError(
        path=path, context={"reason": error_text(error)}, cause=error, retryable=error.retryable
    )


def write_error(path: Path, error: SandlotError) -> SandboxError:
    return WorkspaceArchiveWriteError(
        path=path, context={"reason": error_text(error)}, cause=error, retryable=error.retryable
    )

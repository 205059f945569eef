"""The secret by which the operator of a worker's machine commands the worker.

It is in the worker's data folder, which only the worker's user and root can read. Each start of the worker
makes a new one.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Final

import structlog

from sandlot.domain.errors import Conflict

log = structlog.get_logger("sandlot.membership")

NAME: Final = "control.token"
MAX_BYTES: Final = 1024


class ControlToken:
    def __init__(self, folder: Path) -> None:
        self._file = folder / NAME
        self.secret = secrets.token_urlsafe(32).encode()

    def save(self) -> None:
        """Write the secret. Call it once this process has the folder's lock.

        A worker that cannot write it still serves; `sandlot worker drain` then has to ask a coordinator.
        """
        new = self._file.with_suffix(".new")
        try:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(descriptor, 0o600)
                file.write(self.secret)
            new.replace(self._file)
        except OSError as error:
            log.warning(
                "cannot write the control token: use `sandlot fleet drain` instead of `sandlot worker drain`",
                file=str(self._file),
                error=error.strerror or str(error),
            )

    def remove(self) -> None:
        """Remove the file, unless another process has replaced it. Can be called twice."""
        with contextlib.suppress(OSError):
            if self._file.read_bytes() == self.secret:
                self._file.unlink()


def read_control_token(folder: Path) -> str:
    """The secret of the worker that runs with this data folder."""
    try:
        with (folder / NAME).open("rb") as file:
            return file.read(MAX_BYTES).decode("ascii", "replace").strip()
    except FileNotFoundError:
        raise Conflict(
            f"No worker runs with the data folder {folder}. Name the worker's folder with --data-dir before "
            "the subcommand, or with SANDLOT_DATA_DIR."
        ) from None
    except OSError as error:
        raise Conflict(
            f"Cannot read {folder / NAME}: {error.strerror}. Run this command as the worker's user or as "
            "root, or ask a coordinator with `sandlot fleet drain`."
        ) from error

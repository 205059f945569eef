"""A server's announcement: the file by which the commands of the same user find a running server.

The file is ``server.json`` in the server's data folder. The command line sends its API key to the URL
in this file, so nobody but the caller and root may be able to write it. The server removes it when
it stops. A server that was killed leaves it behind; a reader then sees that the process is gone.

Standard library only, because the command line reads it without the server's packages.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

NAME: Final = "server.json"
MAX_BYTES: Final = 16 * 1024
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
# Where the start time stands in /proc/PID/stat, counted from after the command's name.
_START_TIME: Final = 19


@dataclass(frozen=True, slots=True)
class Announcement:
    """A running server: where it is, and how to check that it is still the same one.

    worker_id: the name that its ``/health`` reports.
    process: identifies the process. A pid alone is used again after a while, and on other machines.
    """

    url: str
    worker_id: str
    pid: int
    process: str
    started_at: float


def announce(folder: Path, url: str, worker_id: str) -> Announcement:
    """Write this process's announcement. Raises ``OSError``."""
    pid = os.getpid()
    made = Announcement(url, worker_id, pid, _process_identity(pid) or "", time.time())
    # Written beside its place and moved there, so that a reader never sees half of it.
    scratch = folder / f".{NAME}.{secrets.token_hex(8)}"
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(asdict(made), file)
        scratch.replace(folder / NAME)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    return made


def withdraw(folder: Path, made: Announcement) -> None:
    """Remove an announcement, unless another server has replaced it. Can be called twice."""
    if read_announcement(folder) == made:
        with contextlib.suppress(OSError):
            (folder / NAME).unlink()


def read_announcement(folder: Path) -> Announcement | None:
    """Return the announcement of a running server that the caller can trust, or None.

    The file must belong to the caller or to root, nobody else may be able to write it, and the
    process that wrote it must still run on this machine.
    """
    try:
        descriptor = os.open(folder / NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        others_can_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not stat.S_ISREG(found.st_mode) or others_can_write or found.st_uid not in (os.geteuid(), 0):
            return None
        try:
            made = _parse(file.read(MAX_BYTES))
        except OSError:
            return None
    if made is None or not made.process or _process_identity(made.pid) != made.process:
        return None
    return made


def _parse(content: bytes) -> Announcement | None:
    try:
        fields = json.loads(content)
        made = Announcement(**{name: fields[name] for name in Announcement.__slots__})
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    texts = (made.url, made.worker_id, made.process)
    right = all(isinstance(text, str) for text in texts) and type(made.pid) is int and made.pid > 0
    return made if right and type(made.started_at) in (int, float) else None


def _process_identity(pid: int) -> str | None:
    """Return the machine's boot, the pid and the start time of a process; None if it does not run."""
    try:
        boot = _BOOT_ID.read_text().strip()
        # The command's name is in brackets and may itself contain spaces and brackets.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return f"{boot}/{pid}/{fields[_START_TIME]}"
    except (OSError, IndexError):
        return None

"""The line in /etc/fstab that mounts a storage file at boot.

systemd makes a mount unit of the line, and other init systems read it too. ``nofail``: a machine without
its storage still boots. The ``x-systemd.before`` options let the engine and the worker wait for the mount,
so that the worker never starts beside an empty folder.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sandlot.domain.errors import Conflict
from sandlot.providers.docker.workspaces.storage.loop_file import MOUNT_OPTIONS, LoopFile

FSTAB = Path("/etc/fstab")
_BEFORE = ("docker.service", "sandlot.service", "sandlot-worker.service")
_OPTIONS = ",".join(
    ("loop", MOUNT_OPTIONS, "nofail", *(f"x-systemd.before={unit}" for unit in _BEFORE)),
)
_RELOAD_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class _Entry:
    source: str
    folder: str


def is_mounted_at_boot(storage: LoopFile, fstab: Path = FSTAB) -> bool:
    entry = _entry_for(storage, fstab)
    return entry is not None and entry.source == str(storage.file)


def mount_at_boot(storage: LoopFile, fstab: Path = FSTAB) -> bool:
    """Add the line, unless there is one for this folder. Returns whether it was added.

    A line that is there stays as it is: its options may be the operator's own.
    """
    entry = _entry_for(storage, fstab)
    if entry is not None:
        if entry.source != str(storage.file):
            raise Conflict(
                f"{fstab} already mounts {entry.source} at {storage.folder}. Remove that line, or choose "
                "another --path."
            )
        return False
    line = f"{_quoted(storage.file)} {_quoted(storage.folder)} btrfs {_OPTIONS} 0 0\n"
    target = fstab.resolve()  # of a link, the file that it leads to
    content = target.read_bytes() if target.exists() else b""
    if content and not content.endswith(b"\n"):
        content += b"\n"
    _replace(target, content + os.fsencode(f"# Sandlot's workspaces\n{line}"))
    if fstab == FSTAB and Path("/run/systemd/system").exists():
        # systemd reads the file again at boot anyway.
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                ["systemctl", "daemon-reload"], check=False, capture_output=True, timeout=_RELOAD_TIMEOUT_S
            )
    return True


def _entry_for(storage: LoopFile, fstab: Path) -> _Entry | None:
    try:
        lines = fstab.read_bytes().splitlines()
    except FileNotFoundError:
        return None
    for line in lines:
        fields = line.split()
        if len(fields) >= 2 and not fields[0].startswith(b"#"):
            entry = _Entry(_unquoted(fields[0]), _unquoted(fields[1]))
            if os.path.normpath(entry.folder) == str(storage.folder):
                return entry
    return None


def _replace(file: Path, content: bytes) -> None:
    """Never half: without a whole fstab a machine may not boot."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, part = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with open(descriptor, "wb") as writing:
            writing.write(content)
            mode = file.stat().st_mode & 0o7777 if file.exists() else 0o644
            os.fchmod(writing.fileno(), mode)
            writing.flush()
            os.fsync(writing.fileno())
        os.replace(part, file)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        raise


def _quoted(path: Path) -> str:
    """As fstab and mountinfo write a path: blanks and backslashes in octal."""
    return "".join(f"\\{ord(char):03o}" if char in " \t\n\\#" else char for char in str(path))


def _unquoted(field: bytes) -> str:
    return os.fsdecode(field.decode("latin-1").encode("latin-1").decode("unicode_escape").encode("latin-1"))

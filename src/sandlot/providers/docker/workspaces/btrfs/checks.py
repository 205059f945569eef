"""Why a folder, or an engine, cannot be used with the btrfs store."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import socket
import struct
from pathlib import Path
from typing import Final

from sandlot.providers.docker.engine import Engine
from sandlot.providers.docker.workspaces.btrfs import mounts, removing, subvolumes
from sandlot.providers.docker.workspaces.btrfs.errors import is_full

_UNIX: Final = "unix://"
_TRIAL_UID: Final = 0x70000000


def check_btrfs(folder: Path) -> str | None:
    """Returns why the folder cannot hold workspaces, in a sentence, or None. Blocks for some ms."""
    if os.geteuid() != 0:
        return "The worker does not run as root, which mounts need."
    if shutil.which("unshare") is None:
        return "The program unshare is missing. Install the package util-linux."
    trial = folder / f"trial-{secrets.token_hex(8)}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        trial.mkdir(mode=0o700)
    except OSError as error:
        if is_full(error):
            return None  # nothing can be tried, and only a folder that was used gets full
        return f"The folder {folder} cannot be written: {error.strerror}."
    try:
        return _try(trial, folder)
    finally:
        mounts.unmount(trial / "mount")
        removing.remove(folder, trial.name)


def _try(trial: Path, folder: Path) -> str | None:
    try:
        with subvolumes.opened(trial) as descriptor:
            subvolumes.create(descriptor, "subvolume")
            with subvolumes.opened(trial / "subvolume") as subvolume:
                subvolumes.info(subvolume)
    except OSError as error:
        if is_full(error):
            return None
        if error.errno in (errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL):
            return f"The folder {folder} is not on btrfs."
        return f"The folder {folder} cannot hold subvolumes: {error.strerror}."
    try:
        (trial / "mount").mkdir()
        mounts.mount_for(_TRIAL_UID, trial / "subvolume", trial / "mount")
    except OSError as error:
        if is_full(error):
            return None
        return (
            f"This kernel or container allows no idmapped mounts on btrfs ({error.strerror}). They "
            "need Linux 5.15 and, in a container, the capability SYS_ADMIN."
        )
    return None


async def check_engine(engine: Engine, folder: Path) -> str | None:
    """Returns why this engine cannot use the folder, or None."""
    if await engine.remaps_users():
        return "The engine maps users (userns-remap or rootless), and cannot use mounts that map them too."
    return _check_visible(engine.host, folder)


def _check_visible(host: str, folder: Path) -> str | None:
    """The engine mounts by path, so it must see what this process mounts."""
    problem = (
        "The engine does not see the mounts of this process. Run the worker on the engine's machine, outside "
        "of containers, and in a systemd unit without PrivateMounts=, PrivateTmp= or Protect…= settings."
    )
    if not host.startswith(_UNIX):
        return problem
    try:
        pid = _listener(host.removeprefix(_UNIX))
    except OSError as error:
        return f"Cannot find out which process the engine is: {error.strerror}."
    trial = folder / f"seen-{secrets.token_hex(8)}"
    try:
        (trial / "mount").mkdir(mode=0o700, parents=True)
        mounts.mount_for(_TRIAL_UID, folder, trial / "mount")
        # Through the engine's own root and mounts. On the mount, the names of ``folder`` are seen.
        seen = Path(f"/proc/{pid}/root") / (trial / "mount" / trial.name).relative_to("/")
        return None if pid and seen.is_dir() else problem
    except OSError as error:
        if is_full(error):
            return None
        return f"Cannot find out whether the engine sees mounts in {folder}: {error.strerror}."
    finally:
        mounts.unmount(trial / "mount")
        removing.remove(folder, trial.name)


def _listener(path: str) -> int:
    """The id of the process that listens on a socket; 0 if it is in another pid namespace."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(10.0)
        connection.connect(path)
        answer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", answer)[0])

"""A btrfs file system in a sparse file, for machines that have no other: made, mounted and grown.

    <folder>.btrfs        the file: always a whole file system, because it gets its name last
    <folder>.btrfs.part   one that is being made
    <folder>              where it is mounted

Each step looks at what is there and does what is missing. So a repeated call finishes what a killed one
began, and one with a larger size lets the file grow.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sandlot.domain.errors import Conflict, EngineProblem, InvalidRequest, StorageFull
from sandlot.providers.data_folder import sync_folder
from sandlot.providers.docker.workspaces.storage.file_system import (
    btrfs_id,
    enable_quotas,
    kernel_has_btrfs,
    mount_at,
)

MIB = 1024**2
MIN_BYTES = 256 * MIB  # mkfs.btrfs itself needs 109 MiB
# What the file must leave free on the disk that it is on.
SPARE_BYTES = 512 * MIB
# No program in a workspace gets rights by a setuid bit, and no device node there works.
MOUNT_OPTIONS = "nosuid,nodev,noatime"
_COMMAND_TIMEOUT_S = 300.0
_PACKAGES = {"mkfs.btrfs": "btrfs-progs", "btrfs": "btrfs-progs", "losetup": "mount", "mount": "mount"}
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LoopFile:
    """``folder``: where its file system is mounted."""

    folder: Path

    @property
    def file(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.btrfs")

    @property
    def part(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.btrfs.part")


def set_up(storage: LoopFile, size: int | None, *, overcommit: bool = False, say: Say) -> None:
    """Make, mount and grow it until it is there with this size. ``size``: None leaves it as it is.

    ``overcommit``: it may grow larger than the disk that it is on has room for.
    """
    _check_tools()
    storage.folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with _locked(storage.folder.parent):
        if not storage.file.exists():
            _make_file(storage, size, overcommit, say)
        elif size is not None:
            _grow_file(storage, size, overcommit, say)
        _mount(storage, say)
        _fill_file(storage, say)
        if btrfs_id(storage.folder) is None:
            raise EngineProblem(f"{storage.file} is mounted at {storage.folder}, but is not btrfs.")
        enable_quotas(storage.folder)


def device_of(storage: LoopFile) -> str | None:
    """The loop device by which the file is mounted at its folder; None if it is not."""
    mount = mount_at(storage.folder)
    if mount is None:
        return None
    backing = Path("/sys/block") / Path(mount.source).name / "loop/backing_file"
    try:
        same = os.path.samefile(backing.read_text().rstrip("\n"), storage.file)
    except OSError:
        return None
    return mount.source if same else None


def room_problem(storage: LoopFile, size: int) -> str | None:
    """What is wrong with a file of this size on the disk that it is on, or None."""
    free = shutil.disk_usage(storage.folder.parent).free
    taken = storage.file.stat().st_blocks * 512 if storage.file.exists() else 0
    fits = max(0, free + taken - SPARE_BYTES)
    if size <= fits:
        return None
    return (
        f"The disk of {storage.folder.parent} has room for a storage file of {_mib(fits)} at most, not of "
        f"{_mib(size)}. If that disk fills up, writes in all workspaces fail"
    )


def _make_file(storage: LoopFile, size: int | None, overcommit: bool, say: Say) -> None:
    if size is None:
        raise InvalidRequest("The storage file is not there yet. Say how large it may grow: --size 50G.")
    _check_size(storage, size, overcommit)
    say(f"Making a btrfs of {_mib(size)} in {storage.file}. The file is sparse: it takes what is used.")
    storage.part.unlink(missing_ok=True)
    descriptor = os.open(storage.part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, size)
        _run("mkfs.btrfs", "--quiet", "--label", "sandlot", str(storage.part))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    storage.part.rename(storage.file)
    sync_folder(storage.file.parent)


def _grow_file(storage: LoopFile, size: int, overcommit: bool, say: Say) -> None:
    now = storage.file.stat().st_size
    if size == now:
        return
    if size < now:
        raise InvalidRequest(
            f"{storage.file} has {_mib(now)}, and cannot shrink to {_mib(size)}. Leave out --size to keep it."
        )
    _check_size(storage, size, overcommit)
    say(f"Growing {storage.file} from {_mib(now)} to {_mib(size)}.")
    os.truncate(storage.file, size)


def _check_size(storage: LoopFile, size: int, overcommit: bool) -> None:
    if size < MIN_BYTES:
        raise InvalidRequest(f"A storage file needs at least {_mib(MIN_BYTES)}, not {_mib(size)}.")
    problem = room_problem(storage, size)
    if problem is not None and not overcommit:
        raise StorageFull(
            f"{problem}. Choose a smaller --size or another --path, or take the risk with --overcommit."
        )


def _mount(storage: LoopFile, say: Say) -> None:
    if device_of(storage) is None:
        if (other := mount_at(storage.folder)) is not None:
            raise Conflict(
                f"{other.source} is mounted at {storage.folder}, not {storage.file}. Unmount it, or choose "
                "another --path."
            )
        storage.folder.mkdir(mode=0o700, exist_ok=True)
        if any(storage.folder.iterdir()):
            raise Conflict(
                f"{storage.folder} is not empty, and a mount would hide its files. Move them, or choose "
                "another --path."
            )
        say(f"Mounting it at {storage.folder}.")
        _run("mount", "-t", "btrfs", "-o", f"loop,{MOUNT_OPTIONS}", str(storage.file), str(storage.folder))
    # As the worker's own folder: only root and the engine come in.
    storage.folder.chmod(0o700)


def _fill_file(storage: LoopFile, say: Say) -> None:
    """Let the file system grow to the end of its file."""
    device = device_of(storage)
    assert device is not None, "it was mounted just now"
    sectors = int((Path("/sys/block") / Path(device).name / "size").read_text())
    if sectors * 512 < storage.file.stat().st_size // 512 * 512:
        _run("losetup", "--set-capacity", device)
    # Costs nothing if there is nothing to grow into.
    _run("btrfs", "filesystem", "resize", "max", str(storage.folder))


def _check_tools() -> None:
    if os.geteuid() != 0:
        raise EngineProblem("Only root can set up storage. Run it with sudo.")
    path = f"{os.environ.get('PATH', '')}:{_PATH}"
    missing = sorted(
        {package for name, package in _PACKAGES.items() if shutil.which(name, path=path) is None}
    )
    if missing:
        raise EngineProblem(
            f"Packages are missing: {', '.join(missing)}. Install them: apt-get install {' '.join(missing)}"
        )
    if not kernel_has_btrfs() and not _loads_btrfs(path):
        raise EngineProblem(
            "This machine's kernel has no btrfs, and its module does not load (modprobe btrfs). Use a kernel "
            "that has it, such as Debian's or Ubuntu's. Without btrfs, workspaces are Docker volumes."
        )
    if not Path("/dev/loop-control").exists():
        raise EngineProblem(
            "There are no loop devices here (/dev/loop-control). In a container, run the command on the "
            "host. On a host, run `modprobe loop`."
        )


def _loads_btrfs(path: str) -> bool:
    modprobe = shutil.which("modprobe", path=path)
    if modprobe is not None:
        subprocess.run([modprobe, "--quiet", "btrfs"], check=False, capture_output=True, timeout=60)
    return kernel_has_btrfs()


def _run(command: str, *arguments: str) -> None:
    env = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{_PATH}", "LC_ALL": "C"}
    try:
        ran = subprocess.run(
            [command, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
            env=env,
            close_fds=False,  # all others close themselves
        )
    except subprocess.TimeoutExpired as error:
        raise EngineProblem(
            f"{command} did not end within {_COMMAND_TIMEOUT_S:g} s. Look at the kernel's log with dmesg, "
            "then repeat the command."
        ) from error
    if ran.returncode != 0:
        said = " ".join((ran.stderr or ran.stdout).split())[-500:] or f"exit status {ran.returncode}"
        raise EngineProblem(
            f"{command} failed: {said.removesuffix('.')}. Solve that and repeat the command: it goes on "
            "where it stopped."
        )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time work in the folder.

    Its commands inherit the lock. So it ends when the process and its last command have ended, and nobody
    mounts beside a mount command whose process was killed.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.set_inheritable(descriptor, True)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _mib(size: int) -> str:
    return f"{size / 1024**3:.4g} GiB" if size >= 1024**3 else f"{size // MIB} MiB"

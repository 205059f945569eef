"""Trees of files: what can be in one, and how two are compared."""

from __future__ import annotations

import hashlib
import os
import random
import socket
import stat
from pathlib import Path
from typing import Any

HOUR_NS = 3600 * 10**9


def contents(root: Path) -> dict[bytes, Any]:
    """Everything that must come back, by path. Names of one file are known by their first."""
    found: dict[bytes, Any] = {}
    first: dict[int, bytes] = {}
    base = os.fsencode(root)
    for folder, folders, files in os.walk(base):
        folders.sort()
        for name in [b"", *sorted(files), *[f for f in folders if os.path.islink(os.path.join(folder, f))]]:
            path = os.path.join(folder, name) if name else folder
            found[os.path.relpath(path, base)] = entry(path, first)
    return found


def entry(path: bytes, first: dict[int, bytes]) -> tuple[object, ...]:
    at = os.lstat(path)
    kind, mode = stat.S_IFMT(at.st_mode), stat.S_IMODE(at.st_mode)
    same: bytes | None = None
    if kind != stat.S_IFDIR:
        same = os.path.basename(first.setdefault(at.st_ino, path))
    if kind == stat.S_IFLNK:
        return kind, at.st_mtime_ns, os.readlink(path), same
    if kind == stat.S_IFREG:
        attributes = {name: os.getxattr(path, name) for name in os.listxattr(path)}
        return kind, mode & 0o1777, at.st_mtime_ns, at.st_size, digest(path, at.st_size), attributes, same
    return kind, mode & 0o3777, at.st_mtime_ns, same


def digest(path: bytes, size: int) -> str:
    if size > 1 << 32:  # almost all of it is a hole
        with open(path, "rb") as file:
            start = os.lseek(file.fileno(), 0, os.SEEK_DATA)
            return f"{start} {os.pread(file.fileno(), 1 << 16, start)!r}"
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def build_odd_tree(root: Path) -> None:
    """One of everything that a sandbox can leave in its workspace."""
    base = os.fsencode(root)

    def at(name: bytes) -> bytes:
        return os.path.join(base, name)

    for number in range(256):
        if number not in (0, 0x2F):
            name = bytes([number]) + b"x"
            Path(os.fsdecode(at(name))).write_bytes(name * number)
    for name in (b"...", b"-rf", b"new\nline", b"n" * 255, "ünï".encode(), b"\xff\xfe", b"a.tmp#1"):
        Path(os.fsdecode(at(name))).write_bytes(name)
    for name, target in (
        (b"up", b"../../../etc/passwd"),
        (b"root", b"/"),
        (b"loop", b"loop"),
        (b"odd", b"\xff\n"),
        (b"long", b"a/" * 2000),
    ):
        os.symlink(target, at(name))
        os.utime(at(name), ns=(1, 123456789), follow_symlinks=False)
    os.mkfifo(at(b"pipe"), 0o640)
    with socket.socket(socket.AF_UNIX) as listener:
        previous = os.getcwd()
        os.chdir(root)
        try:
            listener.bind("socket")
        finally:
            os.chdir(previous)
    os.mkdir(at(b"links"))
    for number in range(3):
        os.link(at(b"new\nline"), at(b"links/%d" % number))
    os.link(at(b"pipe"), at(b"links/pipe"))
    os.link(at(b"odd"), at(b"links/odd"), follow_symlinks=False)
    with open(at(b"sparse"), "wb") as file:
        file.truncate(1 << 40)
        os.pwrite(file.fileno(), b"in the middle", 1 << 39)
    with open(at(b"holes"), "wb") as file:
        for number in range(200):  # every other block
            os.pwrite(file.fileno(), b"\1" * 4096, number * 8192)
        file.truncate(200 * 8192 + 5)
    for name, mode in ((b"shut", 0), (b"run", 0o755), (b"sticky", 0o1666), (b"setuid", 0o6755)):
        Path(os.fsdecode(at(name))).write_bytes(b"#!")
        os.chmod(at(name), mode)
    for name, mode in ((b"closed", 0o500), (b"group", 0o2775), (b"tmp", 0o1777), (b"none", 0)):
        os.mkdir(at(name))
        Path(os.fsdecode(at(name + b"/in"))).write_bytes(b"in")
        os.chmod(at(name), mode)
    Path(os.fsdecode(at(b"noted"))).write_bytes(b"x")
    os.setxattr(at(b"noted"), b"user.origin", b"\0\xff here")
    for name, time_ns in ((b"old", -HOUR_NS - 1), (b"new", 4_000_000_000 * 10**9 + 7)):
        Path(os.fsdecode(at(name))).write_bytes(b"t")
        os.utime(at(name), ns=(time_ns, time_ns))
    Path(os.fsdecode(at(b"large"))).write_bytes(random.Random(7).randbytes(3 << 20) + b"the end" * 9)


def fill(root: Path, *, folders: int, files: int, size: int, seed: int = 1) -> None:
    """Many files that do not compress."""
    source = random.Random(seed)
    for number in range(folders):
        folder = root / f"folder{number:03}"
        folder.mkdir()
        for inside in range(files):
            (folder / f"file{inside:03}").write_bytes(source.randbytes(size))

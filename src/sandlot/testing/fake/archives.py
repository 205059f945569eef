"""Packs and unpacks tar archives of a tree in memory, bounded and without trusting them."""

from __future__ import annotations

import io
import tarfile

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.files import ArchiveSummary
from sandlot.testing.fake.tree import Folder, Link, Node, Regular, Tree, problem

MAX_ARCHIVE_BYTES = 256 * 1024 * 1024


def pack(tree: Tree, path: str, max_bytes: int | None) -> bytes:
    """Packs the content of a folder, or one file under its own name."""
    node = tree.find(path)
    if isinstance(node, Folder):
        members = list(tree.walk(path))
    else:
        tree.content(path)  # raises if the file cannot be read
        members = [(path.rpartition("/")[2], node)]
    bound = MAX_ARCHIVE_BYTES if max_bytes is None else min(max_bytes, MAX_ARCHIVE_BYTES)
    if sum(len(member.data) for _, member in members if isinstance(member, Regular)) > bound:
        raise problem("too_large", path)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, member in members:
            data = bytes(member.data) if isinstance(member, Regular) else b""
            tar.addfile(_header(name, member, len(data)), io.BytesIO(data))
    if len(packed.getvalue()) > bound:
        raise problem("too_large", path)
    return packed.getvalue()


def _header(name: str, node: Node, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode, info.uid, info.gid = node.mode, node.uid, node.uid
    info.mtime = node.mtime_ms // 1000
    info.size = size
    if isinstance(node, Folder):
        info.type = tarfile.DIRTYPE
    if isinstance(node, Link):
        info.type, info.linkname = tarfile.SYMTYPE, node.target
    return info


def unpack(
    tree: Tree, path: str, packed: bytes, max_bytes: int | None, max_files: int | None
) -> ArchiveSummary:
    """Unpacks an archive. Entries before a refused one stay, as when it is unpacked on arrival."""
    if not isinstance(tree.locate(path).node, Folder | None):
        raise problem("not_a_directory", path)
    tree.mkdir(path)
    root = tree.locate(path).path
    files = size = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as tar:
            for member in tar:
                files += 1
                size += member.size if member.isreg() else 0
                if max_files is not None and files > max_files:
                    raise problem("too_large", path)
                if max_bytes is not None and size > max_bytes:
                    raise problem("too_large", path)
                _unpack_one(tree, root, tar, member)
    except tarfile.TarError as error:
        raise InvalidRequest(f"the archive is broken: {error}") from error
    return ArchiveSummary(files, size)


def _unpack_one(tree: Tree, root: str, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    name = _inside(root, member.name)
    _make_folders(tree, root, name)
    if member.isdir():
        tree.mkdir(name, mode=member.mode)
    elif member.isreg():
        content = tar.extractfile(member)
        assert content is not None, "a regular member has content"
        _clear(tree, name)
        tree.write(name, content.read(), mode=member.mode)
    elif member.issym() and member.linkname:
        _clear(tree, name)
        tree.link(name, member.linkname)
    elif member.islnk():
        tree.write(name, bytes(tree.content(_inside(root, member.linkname))), mode=member.mode)
    else:
        raise InvalidRequest(f"{member.name!r:.80} in the archive is not a file, folder or link")


def _inside(root: str, name: str) -> str:
    if name.startswith("/") or "\0" in name or ".." in name.split("/") or not name:
        raise InvalidRequest(f"{name!r:.80} in the archive leads out of the folder to unpack to")
    return f"{root}/{name}"


def _make_folders(tree: Tree, root: str, name: str) -> None:
    """Makes the folders of an entry, and refuses a link among them that leads out of the root."""
    steps = name[len(root) + 1 :].split("/")[:-1]
    for count in range(1, len(steps) + 1):
        step = f"{root}/" + "/".join(steps[:count])
        if not (tree.locate(step).path + "/").startswith(f"{root}/"):
            raise InvalidRequest(
                f"{name[len(root) + 1 :]!r:.80} in the archive goes through a link that leads out"
            )
        tree.mkdir(step)


def _clear(tree: Tree, path: str) -> None:
    """Removes an earlier file or link, so that an entry does not write through a link."""
    if isinstance(tree.locate(path, follow=False).node, Link | Regular):
        tree.remove(path)

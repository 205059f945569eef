"""Whole folders of the fake's file system: copying, comparing and measuring them."""

from __future__ import annotations

from collections.abc import Iterator

from sandlot.domain.workspaces.snapshots import MAX_DIFFERENCES, Difference
from sandlot.testing.fake.tree import Folder, Link, Node, NullDevice, Regular


def copy_of(folder: Folder) -> Folder:
    """A folder with the same content, owners, modes and times."""
    children = {name: _copy(node) for name, node in folder.children.items()}
    return Folder(folder.mode, folder.uid, folder.mtime_ms, children)


def _copy(node: Node) -> Node:
    match node:
        case Folder():
            return copy_of(node)
        case Regular():
            return Regular(node.mode, node.uid, node.mtime_ms, bytearray(node.data))
        case Link():
            return Link(node.mode, node.uid, node.mtime_ms, node.target)
    return NullDevice(node.mode, node.uid, node.mtime_ms)


def read_only_copy(folder: Folder) -> Folder:
    """A folder with the same content, which nobody may change and its owner's readers may read."""
    copy = copy_of(folder)
    for node in (copy, *(node for _, node in _nodes(copy))):
        # Of root, without write bits: what its owner could read and run, everybody can.
        node.mode, node.uid = node.mode & 0o500 | (node.mode & 0o500) >> 6, 0
    return copy


def bytes_in(folder: Folder) -> int:
    return sum(len(node.data) for _, node in _nodes(folder) if isinstance(node, Regular))


def written(old: Folder, new: Folder) -> bool:
    """Whether anything was written between two states of a folder: a time counts, too."""
    before, after = dict(_nodes(old)), dict(_nodes(new))
    return (old.mode, old.mtime_ms) != (new.mode, new.mtime_ms) or (
        {path: (_state(node), node.mtime_ms) for path, node in before.items()}
        != {path: (_state(node), node.mtime_ms) for path, node in after.items()}
    )


def compare(old: Folder, new: Folder) -> Difference:
    before, after = dict(_nodes(old)), dict(_nodes(new))
    kinds = (
        sorted(after.keys() - before.keys()),
        sorted(path for path in after.keys() & before.keys() if _state(after[path]) != _state(before[path])),
        sorted(before.keys() - after.keys()),
    )
    added, changed, removed = (tuple(paths[:MAX_DIFFERENCES]) for paths in kinds)
    return Difference(added, changed, removed, any(len(paths) > MAX_DIFFERENCES for paths in kinds))


def _nodes(folder: Folder, prefix: str = "") -> Iterator[tuple[str, Node]]:
    for name, node in folder.children.items():
        yield prefix + name, node
        if isinstance(node, Folder):
            yield from _nodes(node, f"{prefix}{name}/")


def _state(node: Node) -> tuple[object, ...]:
    content = bytes(node.data) if isinstance(node, Regular) else None
    return type(node), node.mode, node.uid, content, node.target if isinstance(node, Link) else None

"""A file system in memory: folders, files and links with owners and modes.

It shows what the sandbox's user sees.

It resolves paths name by name, as a kernel does, so that links and ".." have the same meaning.
Failures raise a ``FileProblem`` with the requested path.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from sandlot.domain.errors import FileProblem, InvalidRequest
from sandlot.domain.files import FileChangeType, FileEntry, FileType

USER_ID = 1000
WORKSPACE = "/workspace"
VOLUMES = "/volumes"
MAX_FILE_BYTES = 256 * 1024 * 1024  # a larger file does not fit the fake's disk
MAX_PATH = 4096
MAX_NAME = 255
MAX_LINKS = 40
PERMISSIONS = 0o777

_MESSAGES = {
    "not_found": "No such file or directory",
    "exists": "File exists",
    "permission_denied": "Permission denied",
    "not_a_directory": "Not a directory",
    "is_a_directory": "Is a directory",
    "not_regular": "Not a regular file",
    "not_empty": "Directory not empty",
    "no_space": "No space left on device",
    "too_large": "File too large",
    "invalid_path": "Invalid path",
}


def problem(reason: str, path: str) -> FileProblem:
    return FileProblem(f"{path[:200]}: {_MESSAGES[reason]}", reason=reason, path=path)


def error_text(error: FileProblem) -> str:
    """The text that a program on Linux prints for this problem."""
    return _MESSAGES[error.reason]


@dataclass(slots=True)
class Node:
    mode: int
    uid: int = USER_ID
    mtime_ms: int = field(default_factory=lambda: int(time.time() * 1000))

    def touch(self) -> None:
        self.mtime_ms = int(time.time() * 1000)


@dataclass(slots=True)
class Regular(Node):
    data: bytearray = field(default_factory=bytearray)


@dataclass(slots=True)
class Folder(Node):
    children: dict[str, Node] = field(default_factory=dict)


@dataclass(slots=True)
class Link(Node):
    target: str = ""


@dataclass(slots=True)
class NullDevice(Node):
    """Discards everything written to it."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where a path leads: a folder, a name in it, and that node. The root's name is empty."""

    folder: Folder
    name: str
    node: Node | None
    path: str


def absolute(path: str, base: str = WORKSPACE) -> str:
    """Makes a path absolute and drops empty and "." elements.

    It keeps "..", because only the tree knows what that means after a link.
    """
    if not path or "\0" in path or len(path) > MAX_PATH:
        raise problem("invalid_path", path)
    full = path if path.startswith("/") else f"{base}/{path}"
    return "/" + "/".join(_elements(full))


def _elements(path: str) -> list[str]:
    return [element for element in path.split("/") if element not in ("", ".")]


def new_workspace() -> Folder:
    return Folder(0o755)


# A folder, and how large it may grow.
Limited = tuple[Folder, int | None]


class Tree:
    """``workspace``: the folder that is its /workspace. ``quota_bytes``: how large that one may grow.

    ``volumes``: those in its /volumes, by name. ``refusals``: how often there was no room for something.
    """

    def __init__(
        self,
        workspace: Folder | None = None,
        quota_bytes: int | None = None,
        volumes: Mapping[str, Limited] | None = None,
    ) -> None:
        workspace, volumes = workspace or new_workspace(), volumes or {}
        shadow = Regular(0o600, 0, data=bytearray(b"root:*:\n"))
        passwd = Regular(0o644, 0, data=bytearray(b"root:x:0:0\nsandboxuser:x:1000:1000\n"))
        self._root = Folder(
            0o755,
            0,
            children={
                "dev": Folder(0o755, 0, children={"null": NullDevice(0o666, 0)}),
                "etc": Folder(0o755, 0, children={"passwd": passwd, "shadow": shadow}),
                "tmp": Folder(0o777, 0),
                VOLUMES[1:]: Folder(0o755, 0, children={name: volumes[name][0] for name in volumes}),
                WORKSPACE[1:]: workspace,
            },
        )
        self._limited: dict[str, Limited] = {f"{VOLUMES}/{name}/": volumes[name] for name in volumes}
        self._limited[WORKSPACE + "/"] = (workspace, quota_bytes)
        self.refusals = 0
        self.listeners: list[Callable[[FileChangeType, str], None]] = []

    # --- looking ----------------------------------------------------------------------------------

    def locate(self, path: str, *, follow: bool = True) -> Location:
        """Resolves a path. Only its last name may be missing.

        ``follow`` says whether to follow a link at the path's end.
        """
        ancestors: list[tuple[str, Folder]] = [("", self._root)]
        pending = _elements(path)[::-1]
        links = 0
        while pending:
            name = pending.pop()
            if name == "..":
                ancestors = ancestors[:-1] if len(ancestors) > 1 else ancestors
                continue
            if len(name.encode("utf-8", "surrogateescape")) > MAX_NAME:
                raise InvalidRequest(f"{name[:40]}…: File name too long")
            node = ancestors[-1][1].children.get(name)
            if isinstance(node, Link) and (pending or follow):
                links += 1
                if links > MAX_LINKS:
                    raise InvalidRequest(f"{path}: Too many levels of symbolic links")
                ancestors = ancestors[:1] if node.target.startswith("/") else ancestors
                pending.extend(_elements(node.target)[::-1])
                continue
            if not pending:
                folder = "/".join(step for step, _ in ancestors)
                return Location(ancestors[-1][1], name, node, f"{folder}/{name}")
            if node is None:
                raise problem("not_found", path)
            if not isinstance(node, Folder):
                raise problem("not_a_directory", path)
            ancestors.append((name, node))
        folder = "/".join(step for step, _ in ancestors)
        return Location(
            ancestors[max(0, len(ancestors) - 2)][1], ancestors[-1][0], ancestors[-1][1], folder or "/"
        )

    def find(self, path: str, *, follow: bool = True) -> Node:
        node = self.locate(path, follow=follow).node
        if node is None:
            raise problem("not_found", path)
        return node

    def folder(self, path: str) -> Folder:
        node = self.find(path)
        if not isinstance(node, Folder):
            raise problem("not_a_directory", path)
        return node

    def content(self, path: str) -> bytearray:
        """Returns the content of a regular file that the user may read."""
        node = self.find(path)
        if isinstance(node, Folder):
            raise problem("is_a_directory", path)
        if not isinstance(node, Regular):
            raise problem("not_regular", path)
        if not node.mode & (0o400 if node.uid == USER_ID else 0o004):
            raise problem("permission_denied", path)
        return node.data

    def entry(self, path: str, *, follow: bool = True) -> FileEntry:
        return entry_of(path, self.find(path, follow=follow))

    def walk(self, path: str) -> Iterator[tuple[str, Node]]:
        """Yields all nodes under a folder by relative path, a folder's names before deeper ones."""
        pending = [("", self.folder(path))]
        while pending:
            prefix, folder = pending.pop()
            below = []
            for name, node in sorted(folder.children.items()):
                yield prefix + name, node
                if isinstance(node, Folder):
                    below.append((f"{prefix}{name}/", node))
            pending.extend(reversed(below))

    # --- changing ---------------------------------------------------------------------------------

    def open_file(self, path: str, *, truncate: bool = False) -> Node:
        """Opens the file at a path for writing, and creates it if it is missing."""
        place = self.locate(path)
        node = place.node
        if node is None:
            return self._put(place, Regular(0o644))
        if isinstance(node, Folder):
            raise problem("is_a_directory", path)
        if node.uid != USER_ID and not node.mode & 0o002:
            raise problem("permission_denied", path)
        if isinstance(node, Regular) and truncate:
            node.data.clear()
            self._notify(FileChangeType.WRITE, place.path)
        node.touch()
        return node

    def append(self, path: str, node: Node, data: bytes) -> None:
        if isinstance(node, Regular):
            self._check_room(self.locate(path).path, len(node.data), len(node.data) + len(data))
            node.data += data
            node.touch()
            self._notify(FileChangeType.WRITE, self.locate(path).path)

    def write(
        self,
        path: str,
        data: bytes,
        *,
        mode: int | None = None,
        parents: bool = True,
        exclusive: bool = False,
    ) -> FileEntry:
        """Replaces a file's content at once: a reader sees either the old or the new."""
        if parents:
            self._make_parents(path)
        place = self.locate(path, follow=not exclusive)
        old = place.node
        if isinstance(old, Folder):
            raise problem("is_a_directory", path)
        if old is not None and exclusive:
            raise problem("exists", path)
        if old is not None and not isinstance(old, Regular):
            raise problem("not_regular", path)
        self._check_room(place.path, len(old.data) if old is not None else 0, len(data))
        new_mode = mode if mode is not None else old.mode if old is not None else 0o644
        node = Regular(new_mode & PERMISSIONS, data=bytearray(data))
        self._put(place, node)
        return entry_of(path, node)

    def mkdir(self, path: str, *, parents: bool = True, mode: int = 0o755) -> FileEntry:
        if parents:
            self._make_parents(path)
        place = self.locate(path)
        if place.node is not None and not (parents and isinstance(place.node, Folder)):
            raise problem("exists", path)
        if place.node is None:
            self._put(place, Folder(mode & PERMISSIONS))
        return self.entry(path)

    def link(self, path: str, target: str) -> None:
        place = self.locate(path, follow=False)
        if place.node is not None:
            raise problem("exists", path)
        self._put(place, Link(PERMISSIONS, target=target))

    def move(self, source: str, destination: str, *, overwrite: bool = False) -> FileEntry:
        origin = self.locate(source, follow=False)
        target = self.locate(destination, follow=False)
        if origin.node is None:
            raise problem("not_found", source)
        if target.node is not None and not overwrite:
            raise problem("exists", destination)
        if not origin.name or target.path.startswith(origin.path + "/"):
            raise InvalidRequest(f"{source} cannot be moved into itself")
        if isinstance(target.node, Folder) and not isinstance(origin.node, Folder):
            raise problem("is_a_directory", destination)
        if isinstance(target.node, Folder) and target.node.children:
            raise problem("not_empty", destination)
        self._check_writable(origin)
        self._check_writable(target)
        if self._limit_of(origin.path) is not self._limit_of(target.path):
            self._check_room(target.path, 0, _size(origin.node))
        del origin.folder.children[origin.name]
        self._notify(FileChangeType.RENAME, origin.path)
        self._put(target, origin.node)
        return self.entry(destination, follow=False)

    def remove(self, path: str, *, recursive: bool = False) -> int:
        """Removes a name, a link but not its target, and returns how many names were removed."""
        place = self.locate(path, follow=False)
        if not place.name:
            raise InvalidRequest(f"{path} cannot be removed")
        if place.node is None:
            raise problem("not_found", path)
        count = 1
        if isinstance(place.node, Folder):
            count += sum(1 for _ in self.walk(place.path))
            if count > 1 and not recursive:
                raise problem("not_empty", path)
        self._check_writable(place)
        del place.folder.children[place.name]
        self._notify(FileChangeType.REMOVE, place.path)
        return count

    def _make_parents(self, path: str) -> None:
        elements = _elements(path)
        for count in range(1, len(elements)):
            place = self.locate("/" + "/".join(elements[:count]))
            if place.node is None:
                self._put(place, Folder(0o755))

    def _put(self, place: Location, node: Node) -> Node:
        self._check_writable(place)
        node.touch()
        new = place.name not in place.folder.children
        place.folder.children[place.name] = node
        place.folder.touch()
        if new:
            self._notify(FileChangeType.CREATE, place.path)
        if isinstance(node, Regular) and (node.data or not new):
            self._notify(FileChangeType.WRITE, place.path)
        return node

    def _check_writable(self, place: Location) -> None:
        if place.folder.uid != USER_ID and not place.folder.mode & 0o002:
            raise problem("permission_denied", place.path)

    def _check_room(self, path: str, old_bytes: int, new_bytes: int) -> None:
        full = new_bytes > MAX_FILE_BYTES
        folder, quota_bytes = self._limit_of(path) or (None, None)
        if folder is not None and quota_bytes is not None and new_bytes > old_bytes:
            full = full or _size(folder) + new_bytes - old_bytes > quota_bytes
        if full:
            self.refusals += 1
            raise problem("no_space", path)

    def _limit_of(self, path: str) -> Limited | None:
        return next((limit for below, limit in self._limited.items() if path.startswith(below)), None)

    def wake_listeners(self) -> None:
        """Wakes the listeners because the sandbox is gone, so that they check its state."""
        self._notify(FileChangeType.OVERFLOW, "")

    def _notify(self, change: FileChangeType, path: str) -> None:
        for listener in list(self.listeners):
            listener(change, path)


def _size(node: Node) -> int:
    if isinstance(node, Folder):
        return sum(map(_size, node.children.values()))
    return len(node.data) if isinstance(node, Regular) else 0


_TYPES: dict[type[Node], FileType] = {
    Regular: FileType.FILE,
    Folder: FileType.DIRECTORY,
    Link: FileType.SYMLINK,
    NullDevice: FileType.DEVICE,
}


def entry_of(path: str, node: Node) -> FileEntry:
    return FileEntry(
        path=path,
        name=path.rstrip("/").rpartition("/")[2],
        type=_TYPES[type(node)],
        size=len(node.data) if isinstance(node, Regular) else 0,
        mode=node.mode,
        mtime_ms=node.mtime_ms,
        uid=node.uid,
        gid=node.uid,
        target=node.target if isinstance(node, Link) else None,
    )

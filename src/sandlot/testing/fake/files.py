"""The ``Files`` contract on a tree in memory."""

from __future__ import annotations

import asyncio
import re
from builtins import list as list_of  # the contract has a method named list
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager

from sandlot.domain.errors import FileProblem, InvalidRequest
from sandlot.domain.files import (
    ArchiveSummary,
    FileChange,
    FileChangeType,
    FileEntry,
    FilePage,
    Search,
    TextMatch,
    Walk,
)
from sandlot.testing.fake.archives import MAX_ARCHIVE_BYTES, pack, unpack
from sandlot.testing.fake.pipes import Notifier
from sandlot.testing.fake.tree import MAX_FILE_BYTES, MAX_PATH, Regular, Tree, absolute, entry_of, problem

PIECE = 64 * 1024
MAX_PAGE = 10_000
MAX_WALK = 100_000
MAX_CHANGES = 1000  # changes that may wait for a slow watcher
MAX_LINE = 1000


class FakeFiles:
    """The ``Files`` contract. ``tree`` returns the tree, or raises if the sandbox is gone."""

    def __init__(self, tree: Callable[[], Tree]) -> None:
        self._tree = tree

    async def stat(self, path: str, *, follow: bool = True) -> FileEntry:
        with _reporting(path):
            return self._tree().entry(absolute(path), follow=follow)

    async def list(self, path: str, *, after: str | None = None, limit: int = 1000) -> FilePage:
        _check_limit(limit, MAX_PAGE)
        with _reporting(path):
            full = absolute(path)
            children = self._tree().folder(full).children
        names = sorted(name for name in children if after is None or name > after)
        entries = tuple(entry_of(_join(full, name), children[name]) for name in names[:limit])
        return FilePage(entries, names[limit - 1] if len(names) > limit else None)

    async def walk(self, path: str, *, depth: int = 0, glob: str | None = None, limit: int = 10_000) -> Walk:
        _check_limit(limit, MAX_WALK)
        if depth < 0:
            raise InvalidRequest("depth must be 0 (all levels) or more.")
        wanted = compile_glob(glob)
        with _reporting(path):
            full = absolute(path)
            found = list_of(self._tree().walk(full))
        entries: list_of[FileEntry] = []
        for name, node in found:
            if (depth and name.count("/") >= depth) or not wanted(name):
                continue
            if len(entries) == limit:
                return Walk(tuple(entries), truncated=True)
            entries.append(entry_of(_join(full, name), node))
        return Walk(tuple(entries), truncated=False)

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        if offset < 0 or (length is not None and length < 0):
            raise InvalidRequest("offset and length must not be negative.")
        with _reporting(path):
            data = bytes(self._tree().content(absolute(path)))
        end = len(data) if length is None else min(len(data), offset + length)
        for at in range(offset, end, PIECE):
            yield data[at : min(at + PIECE, end)]

    async def read_bytes(self, path: str, *, max_bytes: int = 16 * 1024 * 1024) -> bytes:
        with _reporting(path):
            data = self._tree().content(absolute(path))
        if len(data) > max_bytes:
            raise problem("too_large", path)
        return bytes(data)

    async def write(
        self,
        path: str,
        content: bytes | AsyncIterable[bytes],
        *,
        mode: int | None = None,
        parents: bool = True,
        exclusive: bool = False,
    ) -> FileEntry:
        with _reporting(path):
            full = absolute(path)
            data = await _collect(content, MAX_FILE_BYTES, path)
            return self._tree().write(full, data, mode=mode, parents=parents, exclusive=exclusive)

    async def mkdir(self, path: str, *, parents: bool = True, mode: int = 0o755) -> FileEntry:
        with _reporting(path):
            return self._tree().mkdir(absolute(path), parents=parents, mode=mode)

    async def move(self, source: str, destination: str, *, overwrite: bool = False) -> FileEntry:
        with _reporting(source):
            return self._tree().move(absolute(source), absolute(destination), overwrite=overwrite)

    async def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> int:
        try:
            with _reporting(path):
                return self._tree().remove(absolute(path), recursive=recursive)
        except FileProblem as error:
            if missing_ok and error.reason == "not_found":
                return 0
            raise

    async def search(
        self,
        path: str,
        pattern: str,
        *,
        regex: bool = False,
        ignore_case: bool = False,
        glob: str | None = None,
        limit: int = 1000,
    ) -> Search:
        _check_limit(limit, MAX_PAGE)
        if not pattern:
            raise InvalidRequest("The pattern is empty.")
        try:
            wanted_line = re.compile(
                pattern if regex else re.escape(pattern), re.IGNORECASE if ignore_case else 0
            )
        except re.error as error:
            raise InvalidRequest(f"the pattern: {error}") from error
        wanted, tree = compile_glob(glob), self._tree()
        with _reporting(path):
            full = absolute(path)
            node = tree.find(full)
        if isinstance(node, Regular):
            candidates = [(full, node)]
        else:
            candidates = [
                (_join(full, name), child)
                for name, child in tree.walk(full)
                if isinstance(child, Regular) and wanted(name)
            ]
        matches: list_of[TextMatch] = []
        for name, file in candidates:
            if b"\0" in file.data[:8192]:
                continue  # not text
            for number, line in enumerate(bytes(file.data).splitlines(), start=1):
                text = line.decode("utf-8", "replace")
                if not wanted_line.search(text):
                    continue
                if len(matches) == limit:
                    return Search(tuple(matches), truncated=True)
                matches.append(TextMatch(name, number, text[:MAX_LINE]))
        return Search(tuple(matches), truncated=False)

    def watch(
        self, path: str, *, recursive: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[FileChange]]:
        return self._watch(path, recursive)

    @asynccontextmanager
    async def _watch(self, path: str, recursive: bool) -> AsyncIterator[AsyncIterator[FileChange]]:
        tree = self._tree()
        with _reporting(path):
            tree.find(absolute(path))
        watcher = _Watcher(tree.locate(absolute(path)).path, recursive)
        tree.listeners.append(watcher.on_change)
        try:
            yield self._changes(watcher)
        finally:
            tree.listeners.remove(watcher.on_change)

    async def _changes(self, watcher: _Watcher) -> AsyncIterator[FileChange]:
        while True:
            while watcher.pending:
                yield watcher.pending.popleft()
            await watcher.notifier.wait()
            self._tree()  # raises when the sandbox is gone

    async def read_archive(self, path: str, *, max_bytes: int | None = None) -> AsyncIterator[bytes]:
        with _reporting(path):
            packed = pack(self._tree(), absolute(path), max_bytes)
        for at in range(0, len(packed), PIECE):
            yield packed[at : at + PIECE]

    async def write_archive(
        self,
        path: str,
        tar: AsyncIterable[bytes],
        *,
        max_bytes: int | None = None,
        max_files: int | None = None,
    ) -> ArchiveSummary:
        with _reporting(path):
            packed = await _collect(tar, MAX_ARCHIVE_BYTES, path)
            return unpack(self._tree(), absolute(path), packed, max_bytes, max_files)


class _Watcher:
    def __init__(self, path: str, recursive: bool) -> None:
        self._path = path
        self._recursive = recursive
        self.pending: deque[FileChange] = deque()
        self.notifier = Notifier()

    def on_change(self, change: FileChangeType, path: str) -> None:
        folder = path.rpartition("/")[0] or "/"
        below = self._recursive and (folder + "/").startswith(self._path.rstrip("/") + "/")
        if self._path in (path, folder) or below:
            if len(self.pending) < MAX_CHANGES:
                self.pending.append(FileChange(change, path))
            elif self.pending[-1].type is not FileChangeType.OVERFLOW:
                self.pending.append(FileChange(FileChangeType.OVERFLOW, ""))
        self.notifier.notify()


@contextmanager
def _reporting(path: str) -> Iterator[None]:
    """Reports problems with the path as the caller gave it."""
    if len(path.encode("utf-8", "surrogateescape")) > MAX_PATH:
        raise InvalidRequest(f"A path exceeds {MAX_PATH} bytes.")
    try:
        yield
    except FileProblem as error:
        raise problem(error.reason, path) from error


async def _collect(content: bytes | AsyncIterable[bytes], maximum: int, path: str) -> bytes:
    await asyncio.sleep(0)  # as with a real service, other calls may run before this one acts
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    data = bytearray()
    async for piece in content:
        data += piece
        if len(data) > maximum:
            raise problem("no_space", path)
    return bytes(data)


def _join(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}"


def _check_limit(limit: int, maximum: int) -> None:
    if not 0 < limit <= maximum:
        raise InvalidRequest(f"limit must be between 1 and {maximum}.")


def compile_glob(pattern: str | None) -> Callable[[str], bool]:
    """Compiles a glob: ``*`` and ``?`` stay in a name, ``[a-z]`` is a set, ``**`` spans folders."""
    if not pattern:
        return lambda name: True
    expression = ""
    for part in re.findall(r"\*\*/|/\*\*$|\*\*$|\*|\?|\[!?\]?[^\]]*\]|\\.|.", pattern, re.DOTALL):
        match part:
            case "**/":
                expression += "(?:[^/]+/)*"
            case "/**":
                expression += "(?:/.*)?"
            case "**":
                expression += ".*"
            case "*":
                expression += "[^/]*"
            case "?":
                expression += "[^/]"
            case _ if part.startswith("[") and len(part) > 1:
                expression += "[" + part[1:].replace("!", "^", 1 if part[1] == "!" else 0)
            case _:
                expression += re.escape(part[-1])
    try:
        return lambda name, whole=re.compile(expression, re.DOTALL): whole.fullmatch(name) is not None  # type: ignore[misc]
    except re.error as error:
        raise InvalidRequest(f"the glob: {error}") from error

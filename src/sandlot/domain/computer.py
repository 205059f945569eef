"""What can be done with a computer, whoever provides it: hold an exec, touch files, see execs and shells.

Both contracts speak in these terms: a provider's ``Sandbox`` and the ``SandboxService`` above it.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from sandlot.domain.execution import ExecEvent, ExecResult
from sandlot.domain.files import ArchiveSummary, FileChange, FileEntry, FilePage, Search, Walk


class Execution(Protocol):
    """One reader's hold on an exec. Letting go of it never ends the exec."""

    @property
    def exec_id(self) -> str: ...

    def events(self) -> AsyncIterator[ExecEvent]:
        """Started, Output…, Exited. To be iterated once."""
        ...

    async def result(self) -> ExecResult:
        """Reads all events and folds them."""
        ...

    async def write_stdin(self, data: bytes) -> None: ...

    async def close_stdin(self) -> None: ...

    async def detach(self) -> None:
        """Stops reading; the exec goes on."""
        ...


class Files(Protocol):
    """File operations, done inside the sandbox by its user. Paths: absolute, or relative to the workspace."""

    async def stat(self, path: str, *, follow: bool = True) -> FileEntry: ...

    async def list(self, path: str, *, after: str | None = None, limit: int = 1000) -> FilePage: ...

    async def walk(
        self, path: str, *, depth: int = 0, glob: str | None = None, limit: int = 10_000
    ) -> Walk: ...

    def read(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]: ...

    async def read_bytes(self, path: str, *, max_bytes: int = 16 * 1024 * 1024) -> bytes:
        """The whole file; ``FileProblem(reason='too_large')`` beyond ``max_bytes``."""
        ...

    async def write(
        self,
        path: str,
        content: bytes | AsyncIterable[bytes],
        *,
        mode: int | None = None,
        parents: bool = True,
        exclusive: bool = False,
    ) -> FileEntry: ...

    async def mkdir(self, path: str, *, parents: bool = True, mode: int = 0o755) -> FileEntry: ...

    async def move(self, source: str, destination: str, *, overwrite: bool = False) -> FileEntry: ...

    async def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> int: ...

    async def search(
        self,
        path: str,
        pattern: str,
        *,
        regex: bool = False,
        ignore_case: bool = False,
        glob: str | None = None,
        limit: int = 1000,
    ) -> Search: ...

    def watch(
        self, path: str, *, recursive: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[FileChange]]:
        """Watching has begun once the context is entered."""
        ...

    def read_archive(self, path: str, *, max_bytes: int | None = None) -> AsyncIterator[bytes]:
        """A tar of what is under ``path``."""
        ...

    async def write_archive(
        self,
        path: str,
        tar: AsyncIterable[bytes],
        *,
        max_bytes: int | None = None,
        max_files: int | None = None,
    ) -> ArchiveSummary: ...


@dataclass(frozen=True, slots=True)
class ExecSummary:
    """``command`` is its beginning; ``started_at`` is in seconds since the epoch.

    ``output_end``: up to which offset there is output to read now. ``exit_code`` and ``duration_ms`` come
    with its end. All but the first three are missing where an older agent or server answers.
    """

    exec_id: str
    running: bool
    shell: str | None
    command: str = ""
    started_at: float | None = None
    output_end: int | None = None
    exit_code: int | None = None
    duration_ms: float | None = None


@dataclass(frozen=True, slots=True)
class ShellSummary:
    name: str
    pid: int
    cwd: str
    busy: bool

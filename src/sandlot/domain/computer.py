"""What a caller can do with any sandbox: follow an exec, use files, list execs and shells,
connect to its ports.

Both contracts use these types: a provider's ``Sandbox`` and the ``SandboxService`` above it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from sandlot.domain.errors import SandlotError
from sandlot.domain.execution import ExecEvent, ExecResult
from sandlot.domain.files import ArchiveSummary, FileChange, FileEntry, FilePage, Search, Walk

CLOSE_WITHIN_S: Final = 5.0  # for the other side of a stream to take the last bytes


class Execution(Protocol):
    """One reader's handle on an exec. Releasing the handle never ends the exec."""

    @property
    def exec_id(self) -> str: ...

    def events(self) -> AsyncIterator[ExecEvent]:
        """Yields Started, Output…, Exited. Iterate it only once."""
        ...

    async def result(self) -> ExecResult:
        """Read all events and fold them into a result."""
        ...

    async def write_stdin(self, data: bytes) -> None: ...

    async def close_stdin(self) -> None: ...

    async def detach(self) -> None:
        """Stop reading. The exec goes on."""
        ...


class ByteStream(Protocol):
    """One end of a connection to a port. Implementations subclass it.

    ``close`` ends it well and ``abort`` breaks it off. One of them must be called.
    """

    async def receive(self) -> bytes:
        """Returns the next bytes, or empty bytes at the end. Allows one reader at a time."""
        ...

    async def send(self, data: bytes) -> None: ...

    async def send_end(self) -> None:
        """Says that nothing more will be sent. The other side may still send."""
        ...

    async def close(self, within_s: float = CLOSE_WITHIN_S) -> None:
        """Ends the stream so that the other side gets everything that was sent.

        Sends the end, then drops what still arrives until the other side's own end. After
        ``within_s`` seconds it aborts. Never raises for what the other side does.
        """
        try:
            async with asyncio.timeout(within_s):
                await self.send_end()
                while await self.receive():
                    pass
        except (TimeoutError, OSError, SandlotError):
            pass
        finally:
            self.abort()

    def abort(self) -> None:
        """Breaks the connection off, unless it has ended. Bytes on their way are lost."""
        ...


class Files(Protocol):
    """File operations, performed inside the sandbox as its user.

    Paths are absolute, or relative to the workspace.
    """

    async def stat(self, path: str, *, follow: bool = True) -> FileEntry: ...

    async def list(self, path: str, *, after: str | None = None, limit: int = 1000) -> FilePage: ...

    async def walk(
        self, path: str, *, depth: int = 0, glob: str | None = None, limit: int = 10_000
    ) -> Walk: ...

    def read(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]: ...

    async def read_bytes(self, path: str, *, max_bytes: int = 16 * 1024 * 1024) -> bytes:
        """Read the whole file; ``FileProblem(reason='too_large')`` if it exceeds ``max_bytes``."""
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
        """Report changes. Watching has started once the context is entered."""
        ...

    def read_archive(self, path: str, *, max_bytes: int | None = None) -> AsyncIterator[bytes]:
        """Stream a tar archive of everything under ``path``."""
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
    """One exec of a list. An older agent or server fills in the first three fields only.

    exec_id: its id.
    running: whether it runs.
    shell: the shell that it runs in, if any.
    command: the beginning of its command.
    started_at: when it started, in seconds since the epoch.
    output_end: up to which offset output can be read now.
    exit_code: its exit code, once it has ended.
    duration_ms: how long it ran, in milliseconds, once it has ended.
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
    """One shell of a list.

    name: its name.
    pid: its process id inside the sandbox.
    cwd: the folder that it is in.
    busy: whether a command runs in it.
    """

    name: str
    pid: int
    cwd: str
    busy: bool

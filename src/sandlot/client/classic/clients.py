"""``SandboxClient`` and ``BatchSandboxClient``: the original interface, on the current SDK."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Self

from sandlot.client.async_client import AsyncClient
from sandlot.client.result import Result
from sandlot.client.sync.background import BackgroundLoop
from sandlot.client.sync.client import Client
from sandlot.client.sync.session import Session
from sandlot.domain.errors import SandlotError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandlot.client.unpacking import Downloaded
    from sandlot.domain.files import ArchiveSummary, FileEntry
    from sandlot.domain.service import SandboxService

DEFAULT_TIMEOUT_S: Final = 30.0
DEFAULT_MAX_PARALLEL: Final = 5

Progress = Callable[[int, int], None]


class SandboxClient:
    """The original interface: one client is one sandbox.

    Leaving the ``with`` block deletes a sandbox that entering it created. The sandbox of a thread,
    or of a given session, stays for the rest of the conversation; ``cleanup`` deletes it.
    ``Client`` is the current interface.

    ``thread_id`` or ``session_id``: use the sandbox of this conversation or session. ``timeout``:
    seconds for each command. The other arguments are those of ``Client``.
    """

    def __init__(
        self,
        server_url: str | None = None,
        *,
        api_key: str | None = None,
        thread_id: str | None = None,
        session_id: str | None = None,
        environment: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        service: SandboxService | None = None,
    ) -> None:
        self._client = Client(server_url, api_key=api_key, service=service)
        self._thread_id = thread_id
        self._session_id = session_id
        self._environment = environment
        self._timeout = timeout
        self._session: Session | None = None

    @property
    def session_id(self) -> str | None:
        """The id of the sandbox's session; None before it exists."""
        return self._session_id if self._session is None else self._session.id

    def create_session(self) -> dict[str, Any]:
        """Get this client's sandbox: that of the given session or thread, or a new one."""
        session = self._session
        if session is None:
            if self._session_id is not None:
                session = self._client.get(self._session_id)
            else:
                session = self._client.create(self._environment, thread=self._thread_id)
            self._session = session
        return {
            "session_id": session.id,
            "status": "created" if session.created else "existing",
            "user": "sandboxuser",
            "workspace": "/workspace",
        }

    def execute(self, command: str, timeout: float | None = None) -> Result:
        """Run a command; read ``result["output"]`` and ``result["exit_code"]``.

        ``timeout``: seconds; by default that of the client.
        """
        return self._open().run(command, timeout_s=self._timeout if timeout is None else timeout)

    def upload_file(
        self, local: str | os.PathLike[str], remote: str | None = None
    ) -> FileEntry | ArchiveSummary:
        """Copy a file or folder into the sandbox; see ``Files.upload``."""
        return self._open().files.upload(local, remote)

    def download_file(self, remote: str, local: str | os.PathLike[str]) -> Downloaded:
        """Copy a file or folder out of the sandbox; see ``Files.download``."""
        return self._open().files.download(remote, local)

    def list_files(self, path: str = ".") -> list[FileEntry]:
        """Return the entries of a folder in the sandbox."""
        return self._open().files.list(path)

    def cleanup(self) -> None:
        """Delete the sandbox. The client can be used again and then gets a new one."""
        if self._session is None and self._session_id is not None:
            self._session = self._client.get(self._session_id)
        session, self._session, self._session_id = self._session, None, None
        if session is not None:
            session.delete()

    def close(self) -> None:
        """Close the connection. The sandbox stays."""
        self._client.close()

    def _open(self) -> Session:
        if self._session is None:
            self.create_session()
        assert self._session is not None
        return self._session

    def __enter__(self) -> Self:
        try:
            self.create_session()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._thread_id is None and self._session_id is None:
                self.cleanup()
        finally:
            self.close()


class BatchSandboxClient:
    """Runs many commands: one after the other in one sandbox, or in parallel, each in its own.

    ``max_parallel``: how many run at the same time. ``timeout``: seconds for each command. The
    other arguments are those of ``Client``.
    """

    def __init__(
        self,
        server_url: str | None = None,
        *,
        api_key: str | None = None,
        environment: str | None = None,
        max_parallel: int = DEFAULT_MAX_PARALLEL,
        timeout: float = DEFAULT_TIMEOUT_S,
        service: SandboxService | None = None,
    ) -> None:
        self._url = server_url
        self._api_key = api_key
        self._service = service
        self._environment = environment
        self._max_parallel = max(1, max_parallel)
        self._timeout = timeout

    def execute_batch(
        self,
        commands: Sequence[str],
        parallel: bool = False,
        progress: Progress | bool | None = None,
    ) -> list[Result]:
        """Run the commands and return their results in the same order.

        ``parallel``: run each command in its own sandbox, several at once. ``progress``: a function
        that is called as ``progress(done, total)``, or True for a progress bar.
        """
        loop = BackgroundLoop()
        try:
            with _progress_reporter(progress, len(commands)) as report:
                return loop.run(self._execute(list(commands), parallel, report))
        finally:
            loop.close()

    async def _execute(self, commands: list[str], parallel: bool, report: Progress) -> list[Result]:
        results: dict[int, Result] = {}

        def done(index: int, result: Result) -> None:
            results[index] = result
            report(len(results), len(commands))

        async with AsyncClient(self._url, api_key=self._api_key, service=self._service) as client:
            if parallel:
                await self._run_in_own_sandboxes(client, commands, done)
            elif commands:
                async with await client.create(self._environment) as session:
                    for index, command in enumerate(commands):
                        done(index, await session.run(command, timeout_s=self._timeout))
        return [results[index] for index in range(len(commands))]

    async def _run_in_own_sandboxes(
        self, client: AsyncClient, commands: list[str], done: Callable[[int, Result], None]
    ) -> None:
        slots = asyncio.Semaphore(self._max_parallel)

        async def one(index: int, command: str) -> None:
            async with slots, await client.create(self._environment) as session:
                done(index, await session.run(command, timeout_s=self._timeout))

        try:
            async with asyncio.TaskGroup() as group:
                for index, command in enumerate(commands):
                    group.create_task(one(index, command))
        except* SandlotError as failed:
            # The first failure cancels the others and deletes their sandboxes. Raise it alone.
            raise failed.exceptions[0] from None


def _progress_reporter(progress: Progress | bool | None, total: int) -> AbstractContextManager[Progress]:
    if callable(progress):
        return nullcontext(progress)
    return _bar(total) if progress else nullcontext(lambda done, total: None)


@contextmanager
def _bar(total: int) -> Iterator[Progress]:
    from rich.progress import Progress as Bars

    with Bars() as bars:
        task = bars.add_task("commands", total=total)
        yield lambda done, total: bars.update(task, completed=done)

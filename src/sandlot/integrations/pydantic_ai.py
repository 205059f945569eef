"""Pydantic AI: a sandbox as the workspace of an agent's runs.

    agent = Agent(model, capabilities=[SandlotWorkspace()])

Tools reach it as ``ctx.workspace``. The first operation creates the sandbox, and the conversation
continues in it: the message history keeps its ref, which is the session's id. This adapter never
deletes the sandbox. Its timeouts end it, or ``sandlot.Client().get(ref.id).delete()``.
"""

from __future__ import annotations

import asyncio
import posixpath
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final, TypeVar, Unpack

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.tools import AgentDepsT
from pydantic_ai.workspaces import (
    CommandResult,
    FileEntry,
    WorkspaceCommand,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.client.options import SessionOptions, check_session_options
from sandlot.client.result import Result
from sandlot.client.sync.client import Client
from sandlot.domain import errors
from sandlot.domain.errors import SandlotError
from sandlot.domain.execution import MAX_OUTPUT_LIMIT_BYTES, OnLimit, Verdict
from sandlot.domain.files import FileEntry as Entry
from sandlot.domain.files import FileType
from sandlot.integrations.foreground import run_foreground
from sandlot.integrations.os_files import os_error, write_unless_read_only
from sandlot.integrations.sandboxes import run_on_client

T = TypeVar("T")

PROVIDER: Final = "sandlot"
MAX_ERROR_CHARACTERS: Final = 64 * 1024  # per channel, in the error for too much output


class SandlotWorkspaceBackend:
    """A workspace in one sandbox: that of ``ref``, else that of ``thread``, else a new one.

    The constructor does no I/O; the first operation finds or creates the sandbox. A lost or ended
    sandbox is never replaced: every operation then raises ``WorkspaceUnavailableError``. An
    ``AsyncClient`` serves one event loop, a ``Client`` any number of them. ``options`` are the
    ``SessionOptions`` of a new sandbox.
    """

    def __init__(
        self,
        client: Client | AsyncClient | None = None,
        *,
        ref: WorkspaceRef | None = None,
        thread: str | None = None,
        environment: str | None = None,
        **options: Unpack[SessionOptions],
    ) -> None:
        check_session_options(type(self).__name__, options, ("client", "ref", "thread", "environment"))
        if ref is not None and ref.provider != PROVIDER:
            raise ValueError(f"Expected a ref of a {PROVIDER} workspace, not of {ref.provider!r}.")
        self._client = client if client is not None else Client()
        self._ref = ref
        self._thread = thread
        self._environment = environment
        self._options = options
        if thread is None:
            # With this key the server creates one session even if the request is repeated.
            self._options.setdefault("idempotency_key", f"workspace-{secrets.token_hex(16)}")
        self._opening: Future[_OpenWorkspace] | asyncio.Task[_OpenWorkspace] | None = None

    @property
    def ref(self) -> WorkspaceRef | None:
        return self._ref

    async def working_dir(self) -> str:
        return (await self._ensure_open()).folder

    # --- commands

    async def run(
        self,
        command: WorkspaceCommand,
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        """Run a command.

        Without a timeout the server's default applies: no command runs for ever.
        """
        if isinstance(command, str) is not shell:
            raise TypeError("Pass a string with shell=True, or a sequence of words without it.")
        opened = await self._ensure_open()

        async def work(_: AsyncClient) -> Result:
            return await run_foreground(
                opened.session,
                command,
                env=env or {},
                timeout_s=timeout,
                output_limit=MAX_OUTPUT_LIMIT_BYTES,
                on_limit=OnLimit.KILL,
            )

        return _command_result(await self._call(work))

    # --- files

    async def read_bytes(self, path: str) -> bytes:
        async def work(session: AsyncSession) -> bytes:
            return b"".join([chunk async for chunk in session.files.stream(path)])

        return await self._in_session(work)

    async def write_bytes(self, path: str, data: bytes) -> None:
        await self._in_session(lambda session: write_unless_read_only(session.files, path, data))

    async def stat(self, path: str) -> FileEntry:
        return _entry(path, await self._in_session(lambda session: session.files.stat(path)))

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        async def work(session: AsyncSession) -> list[FileEntry]:
            return [
                await _resolve_link(session, posixpath.join(path, entry.name), entry)
                for entry in await session.files.list(path)
            ]

        return await self._in_session(work)

    async def make_dir(self, path: str) -> None:
        await self._in_session(lambda session: session.files.mkdir(path))

    async def remove(self, path: str) -> None:
        opened = await self._ensure_open()

        async def work(session: AsyncSession) -> None:
            entry = await session.files.stat(path, follow=False)
            if entry.type is FileType.DIRECTORY:
                # A symlink in the path may make this the working directory under another name.
                real = PurePosixPath(await _real_folder(session, path))
                if PurePosixPath(opened.folder).is_relative_to(real):
                    raise ValueError(f"Cannot remove {path}: it is the working directory or contains it.")
            await session.files.remove(path, recursive=True)

        await self._in_session(work)

    async def exists(self, path: str) -> bool:
        return await self._in_session(lambda session: session.files.exists(path))

    # --- the sandbox

    async def _in_session(self, work: Callable[[AsyncSession], Coroutine[Any, Any, T]]) -> T:
        opened = await self._ensure_open()
        return await self._call(lambda _: work(opened.session))

    async def _call(self, work: Callable[[AsyncClient], Coroutine[Any, Any, T]]) -> T:
        try:
            return await run_on_client(self._client, work)
        except SandlotError as error:
            raise _translate_error(error) from error

    async def _ensure_open(self) -> _OpenWorkspace:
        """Find or create the sandbox once.

        Shielded: this workspace keeps a sandbox that is being created, even if its caller is
        cancelled.
        """
        if self._opening is None:
            if isinstance(self._client, Client):
                self._opening = self._client.submit(self._open)
            else:
                self._opening = asyncio.ensure_future(self._open(self._client))
        opening = self._opening
        try:
            return await asyncio.shield(asyncio.wrap_future(opening))
        except SandlotError as error:
            raise _translate_error(error) from error
        finally:
            if opening.done() and self._opening is opening and (opening.cancelled() or opening.exception()):
                self._opening = None  # the next operation tries again

    async def _open(self, client: AsyncClient) -> _OpenWorkspace:
        if self._ref is not None:
            session = await client.get(self._ref.id)
        else:
            session = await client.create(self._environment, thread=self._thread, **self._options)
            self._ref = WorkspaceRef(provider=PROVIDER, id=session.id)
        return _OpenWorkspace(session, await _real_folder(session, "."))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} ref={self._ref!r}, thread={self._thread!r}>"


@dataclass(frozen=True, slots=True)
class _OpenWorkspace:
    session: AsyncSession
    folder: str


@dataclass
class SandlotWorkspace(AbstractCapability[AgentDepsT]):
    """Gives each conversation its own sandbox as its workspace, created with ``options``."""

    client: Client | AsyncClient = field(default_factory=Client)

    _: KW_ONLY

    environment: str | None = None
    options: SessionOptions = field(default_factory=SessionOptions)
    id: str | None = "sandlot_workspace"

    def get_workspace(
        self, ctx: RunContext[AgentDepsT], *, ref: WorkspaceRef | None
    ) -> SandlotWorkspaceBackend | None:
        if ref is not None and ref.provider != PROVIDER:
            return None
        return SandlotWorkspaceBackend(self.client, ref=ref, environment=self.environment, **self.options)


def _command_result(result: Result) -> CommandResult:
    if result.timed_out:
        seconds = result.duration_ms / 1000
        raise WorkspaceTimeoutError(
            f"Command timed out after {seconds:.1f} s and was killed with everything it started.",
            stdout=result.stdout,
            stderr=result.stderr,
        )
    if result.verdict is Verdict.OUTPUT_LIMIT or result.truncated:
        raise WorkspaceOutputLimitError(
            f"Command was killed: it wrote more than {MAX_OUTPUT_LIMIT_BYTES} bytes. Redirect its "
            "output to a file and read the part that you need.",
            limit=MAX_OUTPUT_LIMIT_BYTES,
            stdout=result.stdout[:MAX_ERROR_CHARACTERS],
            stderr=result.stderr[:MAX_ERROR_CHARACTERS],
        )
    return CommandResult(exit_code=result.exit_code, stdout=result.stdout, stderr=result.stderr)


async def _real_folder(session: AsyncSession, path: str) -> str:
    pwd = await session.run(("sh", "-c", 'cd -- "$1" && pwd -P', "sh", path), check=True)
    return pwd.stdout.removesuffix("\n")


async def _resolve_link(session: AsyncSession, path: str, entry: Entry) -> FileEntry:
    """The entry of a symlink's target. A broken link is still listed, as a file of unknown size."""
    if entry.type is FileType.SYMLINK:
        try:
            entry = await session.files.stat(path)
        except (errors.FileProblem, errors.InvalidRequest):  # no target, or a cycle of links
            return FileEntry(name=entry.name, path=path, is_dir=False, size=None)
    return _entry(path, entry)


def _entry(path: str, entry: Entry) -> FileEntry:
    return FileEntry(
        name=posixpath.basename(path),
        path=path,
        is_dir=entry.type is FileType.DIRECTORY,
        size=entry.size if entry.type is FileType.FILE else None,
    )


def _translate_error(error: SandlotError) -> Exception:
    """The error that Pydantic AI expects. Others pass unchanged: the caller may retry them."""
    if isinstance(error, errors.FileProblem):
        return os_error(error)
    if isinstance(error, errors.SandboxLost | errors.NotFound):
        return WorkspaceUnavailableError(
            f"{error.message.removesuffix('.')}. Its files are gone. Start over with workspace='new'."
        )
    if isinstance(error, errors.InvalidRequest):
        return ValueError(error.message)
    return error

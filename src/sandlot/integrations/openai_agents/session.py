"""``SandlotSandboxSession``: a sandbox's commands, files and workspace archive."""

from __future__ import annotations

import asyncio
import contextlib
import io
import stat
import tarfile
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

from agents.sandbox.errors import (
    ExecNonZeroError,
    ExecTimeoutError,
    ExecTransportError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceRootNotFoundError,
)
from agents.sandbox.files import EntryKind, FileEntry
from agents.sandbox.session import BaseSandboxSession
from agents.sandbox.session.runtime_helpers import RESOLVE_WORKSPACE_PATH_HELPER, RuntimeHelperScript
from agents.sandbox.session.workspace_payloads import coerce_write_payload
from agents.sandbox.types import ExecResult, Permissions, User
from agents.sandbox.util.tar_utils import UnsafeTarMemberError

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.client.result import marked_bytes
from sandlot.client.sync.client import Client
from sandlot.domain import errors
from sandlot.domain.computer import Files
from sandlot.domain.errors import SandlotError
from sandlot.domain.execution import MAX_OUTPUT_LIMIT_BYTES
from sandlot.domain.files import FileType
from sandlot.domain.session import SessionState
from sandlot.integrations.foreground import run_foreground
from sandlot.integrations.openai_agents.archives import (
    copy_validated,
    portable_archive,
    read_chunks,
    read_in_thread,
)
from sandlot.integrations.openai_agents.failures import (
    error_text,
    read_error,
    refuse_accounts,
    refuse_user,
    write_error,
)
from sandlot.integrations.openai_agents.state import SandlotSandboxSessionState
from sandlot.integrations.sandboxes import run_on_client

T = TypeVar("T")

_KINDS: Final = {
    FileType.FILE: EntryKind.FILE,
    FileType.DIRECTORY: EntryKind.DIRECTORY,
    FileType.SYMLINK: EntryKind.SYMLINK,
}
_TYPE_BITS: Final = {FileType.DIRECTORY: stat.S_IFDIR}


class SandlotSandboxSession(BaseSandboxSession):
    """One sandbox for the framework.

    Closing the session keeps the sandbox. ``SandlotSandboxClient.delete`` or its timeouts end it.
    """

    state: SandlotSandboxSessionState

    def __init__(
        self,
        client: Client | AsyncClient,
        session: AsyncSession,
        state: SandlotSandboxSessionState,
        *,
        reused: bool = False,
    ) -> None:
        self.state = state
        self._client = client
        self._session = session
        self._set_start_state_preserved(reused)

    # --- commands

    def _prepare_exec_command(
        self, *command: str | Path, shell: bool | list[str], user: str | User | None
    ) -> list[str]:
        refuse_user(user)
        return super()._prepare_exec_command(*command, shell=shell, user=None)

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        """Run a command. Without a timeout the server's default applies."""
        root = self.state.manifest.root
        # During start-up the root may not exist yet.
        cwd = root if self.state.workspace_root_ready else None
        try:
            result = await self._call(
                lambda: run_foreground(
                    self._session,
                    [str(word) for word in command],
                    cwd=cwd,
                    timeout_s=timeout,
                    output_limit=MAX_OUTPUT_LIMIT_BYTES,
                )
            )
        except SandlotError as error:
            if (
                cwd is not None
                and isinstance(error, errors.InvalidRequest)
                and not await self._may_exist(cwd)
            ):
                raise WorkspaceRootNotFoundError(path=Path(cwd), cause=error) from error
            raise ExecTransportError(
                command=command, message=error_text(error), cause=error, retryable=error.retryable
            ) from error
        if result.timed_out:
            raise ExecTimeoutError(
                command=command,
                timeout_s=timeout,
                context={"stdout": result.stdout[-4096:], "stderr": result.stderr[-4096:]},
            )
        raw = result.raw
        stdout = marked_bytes(raw.stdout, raw.stdout_omitted)
        stderr = marked_bytes(raw.stderr, raw.stderr_omitted)
        if result.truncated:  # the framework's result has no field for this
            stderr += f"\n[output truncated: the command wrote {result.output_bytes} bytes]\n".encode()
        return ExecResult(stdout=stdout, stderr=stderr, exit_code=result.exit_code)

    # --- files

    def _runtime_helpers(self) -> tuple[RuntimeHelperScript, ...]:
        return (RESOLVE_WORKSPACE_PATH_HELPER,)

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        # Resolve links inside the sandbox, so that none leads outside what the manifest allows.
        return await self._validate_remote_path_access(path, for_write=for_write)

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        refuse_user(user)
        return io.BytesIO(await self._read(path, None))

    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        return await self._read(path, max_bytes)

    async def _read(self, path: Path, length: int | None) -> bytes:
        allowed = (await self._validate_path_access(path)).as_posix()

        async def work() -> bytes:
            return b"".join([chunk async for chunk in self._session.files.stream(allowed, length=length)])

        try:
            return await self._call(work)
        except errors.FileProblem as problem:
            if problem.reason == "not_found":
                raise WorkspaceReadNotFoundError(path=path, cause=problem) from problem
            raise read_error(path, problem) from problem
        except SandlotError as error:
            raise read_error(path, error) from error

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        refuse_user(user)
        stream = coerce_write_payload(path=path, data=data).stream
        allowed = (await self._validate_path_access(path, for_write=True)).as_posix()
        try:
            await self._call(lambda: self._session.files.write(allowed, read_chunks(stream)))
        except SandlotError as error:
            raise write_error(path, error) from error

    async def ls(self, path: Path | str, *, user: str | User | None = None) -> list[FileEntry]:
        """List a folder, also through a link.

        /workspace is a link, and the shell's ``ls -l`` would list the link itself.
        """
        refuse_user(user)
        allowed = await self._validate_path_access(path)
        try:
            found = await self._call(lambda: self._session.files.list(allowed.as_posix()))
        except SandlotError as error:
            raise ExecNonZeroError(
                ExecResult(stdout=b"", stderr=error.message.encode(), exit_code=1),
                command=("ls", allowed),
                cause=error,
            ) from error
        return [
            FileEntry(
                path=(allowed / entry.name).as_posix(),
                permissions=Permissions.from_mode(entry.mode | _TYPE_BITS.get(entry.type, 0)),
                owner=str(entry.uid),
                group=str(entry.gid),
                size=entry.size,
                kind=_KINDS.get(entry.type, EntryKind.OTHER),
            )
            for entry in found
        ]

    async def persist_workspace(self) -> io.IOBase:
        root = self._workspace_root_path()
        with tempfile.TemporaryFile() as archive:

            async def work() -> None:
                async for chunk in (await self._files()).read_archive(root.as_posix()):
                    await asyncio.to_thread(archive.write, chunk)

            try:
                await self._call(work)
                return await asyncio.to_thread(
                    portable_archive, archive, root, self._persist_workspace_skip_relpaths()
                )
            except SandlotError as error:
                raise read_error(root, error) from error
            except (UnsafeTarMemberError, tarfile.TarError, OSError) as error:
                raise WorkspaceArchiveReadError(path=root, cause=error) from error

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        root = self._workspace_root_path()
        with tempfile.TemporaryFile() as archive:
            try:
                await asyncio.to_thread(copy_validated, data, archive)
            except UnsafeTarMemberError as error:
                raise WorkspaceArchiveWriteError(
                    path=root, context={"reason": error.reason, "member": error.member}, cause=error
                ) from error
            except (tarfile.TarError, OSError) as error:
                raise WorkspaceArchiveWriteError(path=root, cause=error) from error

            async def work() -> None:
                await (await self._files()).write_archive(root.as_posix(), read_in_thread(archive))

            try:
                await self._call(work)
            except SandlotError as error:
                raise write_error(root, error) from error

    async def provision_manifest_accounts(self) -> None:
        refuse_accounts(self.state.manifest)

    # --- the sandbox

    async def running(self) -> bool:
        try:
            return (await self._call(self._session.refresh)).state is SessionState.ACTIVE
        except errors.NotFound:
            return False

    async def _files(self) -> Files:
        return (await self._session.client.opened()).files(self._session.id)

    async def _may_exist(self, path: str) -> bool:
        with contextlib.suppress(SandlotError):
            return await self._call(lambda: self._session.files.exists(path))
        return True

    async def _call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await run_on_client(self._client, lambda _: work())

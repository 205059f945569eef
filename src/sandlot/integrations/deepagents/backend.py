"""``SandlotBackend``: the backend for a deep agent's file and shell tools.

One instance serves every conversation. Each call asks LangGraph for its thread and works in that
thread's sandbox, in whichever process the call runs.
"""

from __future__ import annotations

from typing import Final, TypeVar, Unpack

from deepagents.backends.protocol import (
    DeleteResult,
    EditResult,
    ExecuteOffloadResult,
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    ReadResult,
    WriteResult,
)
from deepagents.backends.sandbox import BaseSandbox

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.client.options import SessionOptions, check_session_options
from sandlot.client.sync.client import Client
from sandlot.domain.errors import InvalidRequest, SandlotError
from sandlot.integrations.deepagents import execution, file_operations, searching
from sandlot.integrations.deepagents.execution import CommandCall
from sandlot.integrations.deepagents.operation import Operation, add_note
from sandlot.integrations.langgraph_thread import current_task, current_thread
from sandlot.integrations.model_text import mark_new_sandbox_reported, new_sandbox_note
from sandlot.integrations.sandboxes import Sandboxes, Work
from sandlot.integrations.toolbox.commands import SHELL

T = TypeVar("T")

UNBOUND_ID: Final = "sandlot"  # the backend's id outside a conversation


class SandlotBackend(BaseSandbox):
    """``create_deep_agent(model, backend=SandlotBackend())``, invoked with a ``thread_id``.

    ``client``: a ``Client`` serves blocking and async calls on any loop. An ``AsyncClient`` serves
    async calls on its own loop.
    ``environment`` and the session options apply to new sandboxes.
    ``name``: gives a subagent its own sandbox in each conversation. Without a name it shares its
    parent's.
    ``thread``: always use this conversation's sandbox, also outside a graph.
    ``shell``: commands run in the bash of this name, which keeps its folder and variables between
    commands and between processes. Concurrent calls wait for each other; give a subagent that
    shares the sandbox its own shell to avoid that. With None each command runs in a new process,
    and commands run concurrently.

    An error in a sandbox becomes an answer for the model. Every call reports a lost sandbox, and it
    is not replaced until the application calls ``recreate``.
    """

    enable_capture_offload = True

    def __init__(
        self,
        client: Client | AsyncClient | None = None,
        *,
        environment: str | None = None,
        name: str | None = None,
        thread: str | None = None,
        shell: str | None = SHELL,
        **options: Unpack[SessionOptions],
    ) -> None:
        check_session_options("SandlotBackend", options, ("client", "environment", "name", "thread", "shell"))
        self._sandboxes = Sandboxes(client, environment=environment, name=name, **options)
        self._thread = thread
        self._shell = shell

    @property
    def id(self) -> str:
        """The key of the conversation's thread. Reading it creates nothing and never blocks."""
        try:
            return self._sandboxes.thread_key(self._current_thread())
        except InvalidRequest:
            return UNBOUND_ID

    # --- for the application

    def recreate(self, thread: str | None = None) -> None:
        """Replace a lost sandbox with a new one, which has the files that were kept. Outside a run, name the
        thread.
        """
        self._sandboxes.run(thread or self._current_thread(), _recreate)

    async def arecreate(self, thread: str | None = None) -> None:
        await self._sandboxes.arun(thread or self._current_thread(), _recreate)

    # --- commands

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command. ``timeout`` is in seconds; None and 0 mean the server's default.

        A command that times out has exit code 124.
        """
        return self._run(execution.execute(CommandCall(command, timeout, self._shell)))

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        return await self._arun(execution.execute(CommandCall(command, timeout, self._shell)))

    def execute_with_offload(
        self,
        command: str,
        capture_path: str,
        *,
        max_inline_bytes: int,
        max_capture_bytes: int | None = None,
        timeout: int | None = None,
    ) -> ExecuteOffloadResult:
        """Like ``execute``, for a model: report how the command ended, and save long output."""
        call = self._named_call(command, timeout, capture_path)
        return self._run(
            execution.execute_with_offload(call, capture_path, max_inline_bytes, max_capture_bytes)
        )

    async def aexecute_with_offload(
        self,
        command: str,
        capture_path: str,
        *,
        max_inline_bytes: int,
        max_capture_bytes: int | None = None,
        timeout: int | None = None,
    ) -> ExecuteOffloadResult:
        call = self._named_call(command, timeout, capture_path)
        return await self._arun(
            execution.execute_with_offload(call, capture_path, max_inline_bytes, max_capture_bytes)
        )

    # --- files

    def ls(self, path: str) -> LsResult:
        return self._run(file_operations.ls(path))

    async def als(self, path: str) -> LsResult:
        return await self._arun(file_operations.ls(path))

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        return self._run(file_operations.read(file_path, offset, limit))

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        return await self._arun(file_operations.read(file_path, offset, limit))

    def write(self, file_path: str, content: str) -> WriteResult:
        return self._run(file_operations.write(file_path, content))

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        return await self._arun(file_operations.write(file_path, content))

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        return self._run(file_operations.edit(file_path, old_string, new_string, replace_all))

    async def aedit(
        self, file_path: str, old_string: str, new_string: str, replace_all: bool = False
    ) -> EditResult:
        return await self._arun(file_operations.edit(file_path, old_string, new_string, replace_all))

    def delete(self, file_path: str) -> DeleteResult:
        return self._run(file_operations.delete(file_path))

    async def adelete(self, file_path: str) -> DeleteResult:
        return await self._arun(file_operations.delete(file_path))

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        return self._run(searching.grep(pattern, path, glob, max_count, self.grep_exclude_dirs))

    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        return await self._arun(searching.grep(pattern, path, glob, max_count, self.grep_exclude_dirs))

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find regular files; links are not followed. The default path is the workspace."""
        return self._run(searching.glob(pattern, path))

    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        return await self._arun(searching.glob(pattern, path))

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return self._run(file_operations.upload(files))

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return await self._arun(file_operations.upload(files))

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return self._run(file_operations.download(paths))

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return await self._arun(file_operations.download(paths))

    # --- internals

    def _current_thread(self) -> str:
        return self._thread if self._thread is not None else current_thread()

    def _named_call(self, command: str, timeout: int | None, capture_path: str) -> CommandCall:
        return CommandCall(
            command, timeout, self._shell, execution.exec_id_for(current_task(), capture_path, command)
        )

    def _run(self, operation: Operation[T]) -> T:
        thread = self._current_thread()
        try:
            return self._sandboxes.run(thread, self._with_new_sandbox_note(operation))
        except SandlotError as error:
            return operation.on_unavailable(error)

    async def _arun(self, operation: Operation[T]) -> T:
        thread = self._current_thread()
        try:
            return await self._sandboxes.arun(thread, self._with_new_sandbox_note(operation))
        except SandlotError as error:
            return operation.on_unavailable(error)

    def _with_new_sandbox_note(self, operation: Operation[T]) -> Work[T]:
        """Add a note to the answer if the sandbox replaces the conversation's earlier one."""

        async def work(session: AsyncSession) -> T:
            note = await new_sandbox_note(session)
            answer = await operation.run_in(session)
            # If this answer has no place for the note, a later answer carries it.
            if note is not None and add_note(answer, note):
                await mark_new_sandbox_reported(session)
            return answer

        return work


async def _recreate(session: AsyncSession) -> None:
    await session.recreate()

"""``SandlotBackend``: what the file and shell tools of a deep agent work on.

One instance serves every conversation: each call asks LangGraph for the thread that it belongs to and works
in that thread's sandbox, whichever process it is made in.
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
from sandlot.integrations.deepagents.execution import Call
from sandlot.integrations.deepagents.operation import Operation, tell
from sandlot.integrations.langgraph_thread import current_task, current_thread
from sandlot.integrations.model_text import new_sandbox_for_model, new_sandbox_was_told
from sandlot.integrations.sandboxes import Sandboxes, Work
from sandlot.integrations.toolbox.commands import SHELL

T = TypeVar("T")

OUTSIDE: Final = "sandlot"  # the id of a backend that no conversation is using


class SandlotBackend(BaseSandbox):
    """``create_deep_agent(model, backend=SandlotBackend())``, invoked with a ``thread_id``.

    ``client``: a ``Client`` serves blocking and async calls on any loop. An ``AsyncClient`` serves async
    calls, on the loop that it belongs to.
    ``environment`` and the session options: for the sandboxes that are made.
    ``name``: a subagent's own sandbox in each conversation. Without one it shares its parent's.
    ``thread``: always this conversation's sandbox, also outside of a graph.
    ``shell``: commands run in a bash of this name, which keeps its folder and variables from command to
    command and from process to process. Of calls made at the same time each waits for its turn; a subagent
    that shares the sandbox and is not to wait has a shell of its own. None: each command starts anew, and
    all run at once.

    What goes wrong in a sandbox is an answer for the model. A sandbox that is lost is reported with every
    call and never replaced, until the application asks for an empty one with ``recreate``.
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
        """The conversation that a call would belong to now. Asking creates nothing and waits for nothing."""
        try:
            return self._sandboxes.thread_key(self._current_thread())
        except InvalidRequest:
            return OUTSIDE

    # its life, for the application

    def recreate(self, thread: str | None = None) -> None:
        """A new, empty sandbox in place of one that was lost. Outside of a run the thread has to be named."""
        self._sandboxes.run(thread or self._current_thread(), _recreate)

    async def arecreate(self, thread: str | None = None) -> None:
        await self._sandboxes.arun(thread or self._current_thread(), _recreate)

    # commands

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Seconds of ``timeout``; without one, and with 0, as the server has it. Timed out: exit code 124."""
        return self._run(execution.execute(Call(command, timeout, self._shell)))

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        return await self._arun(execution.execute(Call(command, timeout, self._shell)))

    def execute_with_offload(
        self,
        command: str,
        capture_path: str,
        *,
        max_inline_bytes: int,
        max_capture_bytes: int | None = None,
        timeout: int | None = None,
    ) -> ExecuteOffloadResult:
        """As ``execute``, for a model: with how the command ended, and long output in a file."""
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

    # files

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
        """Regular files alone; links are not followed. Without a path: in the workspace."""
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

    # how they are done

    def _current_thread(self) -> str:
        return self._thread if self._thread is not None else current_thread()

    def _named_call(self, command: str, timeout: int | None, capture_path: str) -> Call:
        return Call(command, timeout, self._shell, execution.named(current_task(), capture_path, command))

    def _run(self, operation: Operation[T]) -> T:
        thread = self._current_thread()
        try:
            return self._sandboxes.run(thread, self._telling(operation))
        except SandlotError as error:
            return operation.refused(error)

    async def _arun(self, operation: Operation[T]) -> T:
        thread = self._current_thread()
        try:
            return await self._sandboxes.arun(thread, self._telling(operation))
        except SandlotError as error:
            return operation.refused(error)

    def _telling(self, operation: Operation[T]) -> Work[T]:
        """A sandbox that is not the one which the conversation had before must not go unnoticed."""

        async def work(session: AsyncSession) -> T:
            note = await new_sandbox_for_model(session)
            answer = await operation.within(session)
            # Where there is no place for it, a later answer has one.
            if note is not None and tell(answer, note):
                await new_sandbox_was_told(session)
            return answer

        return work


async def _recreate(session: AsyncSession) -> None:
    await session.recreate()

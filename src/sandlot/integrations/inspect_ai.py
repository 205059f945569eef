"""Inspect: runs every sample of an evaluation in its own sandbox.

    Task(…, sandbox="sandlot")
    Task(…, sandbox=("sandlot", "gvisor"))    # one of the server's environments
    config = SandlotConfig(environment="gvisor", lifetime_s=7200)
    Task(…, sandbox=SandboxEnvironmentSpec("sandlot", config))

SANDLOT_URL and SANDLOT_API_KEY name the server. Commands run as the sandbox's only user, which is
not root. ``exec_remote`` and the tools built on it (``bash_session``, ``text_editor``) do not work:
they install a program in /var/tmp, which is read-only here. Inspect must run on asyncio, which is
its default.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import shlex
from collections.abc import AsyncIterator
from logging import getLogger
from typing import Any, Final, Literal, overload

import anyio
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel, ConfigDict

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.domain import errors
from sandlot.domain.errors import SandlotError
from sandlot.domain.execution import Channel, Exited, Output
from sandlot.domain.ids import new_exec_id
from sandlot.domain.session import SessionState
from sandlot.integrations.foreground import kill_abandoned
from sandlot.integrations.os_files import os_error, write_unless_read_only

logger = getLogger(__name__)

WORKSPACE: Final = "/workspace"
# Concurrent samples unless --max-sandboxes is set: what a server on an ordinary machine can carry.
DEFAULT_CONCURRENCY: Final = 16
POLL_S: Final = 0.2  # a command takes only milliseconds here
DELETE_TIMEOUT_S: Final = 30.0
# Marks the sessions that `inspect sandbox cleanup` may delete.
TASK_METADATA_KEY: Final = "inspect_task"


class SandlotConfig(BaseModel):
    """Options of a sample's sandbox.

    Timeouts default to those of the server's environment. Long samples may need longer ones.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    environment: str | None = None
    env: dict[str, str] = {}
    idle_timeout_s: float | None = None
    lifetime_s: float | None = None

    def __hash__(self) -> int:  # Inspect groups samples by their configuration
        return hash(self.model_dump_json())


@sandboxenv(name="sandlot")
class SandlotSandboxEnvironment(SandboxEnvironment):
    def __init__(self, session: AsyncSession) -> None:
        super().__init__()
        self.session = session
        self._users: frozenset[str] | None = None

    # --- samples

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        settings = _settings(config)
        client = AsyncClient()  # one per sample, on the sample's own loop
        try:
            # A cancelled request could leave a session with an unknown id, so let it finish.
            with anyio.CancelScope(shield=True):
                session = await client.create(
                    settings.environment,
                    env=settings.env,
                    idle_timeout_s=settings.idle_timeout_s,
                    lifetime_s=settings.lifetime_s,
                    metadata={TASK_METADATA_KEY: task_name[:200]},
                )
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await client.aclose()
            if isinstance(error, SandlotError):
                raise RuntimeError(f"Cannot create a sandbox for the sample: {error.message}") from error
            raise
        environment = cls(session)
        try:
            await anyio.lowlevel.checkpoint()  # raises if the sample was cancelled meanwhile
        except BaseException:
            await environment.delete()
            raise
        return {"default": environment}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        for environment in environments.values():
            await environment.as_type(SandlotSandboxEnvironment).delete()

    async def delete(self) -> None:
        with anyio.move_on_after(DELETE_TIMEOUT_S, shield=True) as scope:
            try:
                await self.session.delete()
            except SandlotError as error:
                # Raising would discard the sample's result. The session's timeout ends it anyway.
                logger.warning(
                    "cannot delete session %s; its timeout will end it: %s", self.session.id, error.message
                )
            finally:
                await self.session.client.aclose()
        if scope.cancelled_caught:
            logger.warning("cannot delete session %s in time; its timeout will end it", self.session.id)

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """Delete one session by id, or all that Inspect created with this server and key."""
        async with AsyncClient() as client:
            if id is not None:
                await (await client.get(id)).delete()
                return
            async for session in client.sessions():
                if TASK_METADATA_KEY in session.info.metadata:
                    await session.delete()

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return SandlotConfig(**config)

    @classmethod
    def default_concurrency(cls) -> int | None:
        return DEFAULT_CONCURRENCY

    def default_polling_interval(self) -> float:
        return POLL_S

    # --- commands

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command once, whatever ``timeout_retry`` says.

        Without a timeout the server's default applies.
        """
        folder = posixpath.join(WORKSPACE, cwd or "")
        async with self._translated_errors(folder if cwd else None):
            await self._check_user(user)
            output, exited = await self._run(cmd, input, folder, env or {}, timeout)
        stdout, stderr = (output[channel].decode("utf-8", "replace") for channel in Channel)
        if exited.reason == "timeout":
            timeout_error = TimeoutError(
                f"Command timed out after {exited.duration_ms / 1000:.1f} s and was killed."
            )
            # Inspect reads the output from this attribute.
            timeout_error.truncated_output = stdout + stderr  # type: ignore[attr-defined]
            raise timeout_error
        if exited.reason == "start_failed" and exited.code == 126:
            raise PermissionError(exited.error)
        return ExecResult(exited.code == 0, exited.code, stdout, stderr)

    async def _run(
        self, cmd: list[str], input: str | bytes | None, cwd: str, env: dict[str, str], timeout: float | None
    ) -> tuple[dict[Channel, bytearray], Exited]:
        """Stream a command. Each channel has its own output limit.

        Streaming is needed because input and output may be larger than a request.
        """
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        output = {channel: bytearray() for channel in Channel}
        exec_id = new_exec_id()
        events = self.session.stream(
            cmd, stdin=input, cwd=cwd, env=env, timeout_s=timeout, output_limit=None, exec_id=exec_id
        )
        try:
            async with contextlib.aclosing(events):
                async for event in events:
                    if isinstance(event, Exited):
                        return output, event
                    if isinstance(event, Output):
                        channel_output = output[event.channel]
                        channel_output += event.data
                        if len(channel_output) > limit:
                            raise OutputLimitExceededError(
                                SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR,
                                channel_output[:limit].decode("utf-8", "replace"),
                            )
        except (asyncio.CancelledError, OutputLimitExceededError):
            await kill_abandoned(self.session, exec_id)
            raise
        raise errors.LinkInterrupted(f"The events of exec {exec_id} ended without an exit event.")

    async def _check_user(self, user: str | None) -> None:
        if user is None:
            return
        if self._users is None:
            names = await self.session.run("id -u; id -un")
            self._users = frozenset(names.stdout.split())
        if user not in self._users:
            raise SandboxUserUnsupportedError(
                f"Commands run as {' or '.join(sorted(self._users))} in this sandbox, not as {user!r}. "
                "Leave out user."
            )

    # --- files

    async def write_file(self, file: str, contents: str | bytes) -> None:
        async with self._translated_errors():
            await write_unless_read_only(self.session.files, file, contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        async with self._translated_errors():
            try:
                content = await self.session.files.read(
                    file, max_bytes=SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
                )
            except errors.FileProblem as problem:
                if problem.reason != "too_large":
                    raise
                raise OutputLimitExceededError(
                    SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None
                ) from problem
        return content.decode() if text else content

    # --- the sandbox

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        try:
            await self._check_user(user)
            state = (await self.session.refresh()).state
        except SandlotError as error:
            raise ConnectionError(error.message) from error
        if state is not SessionState.ACTIVE:
            raise ConnectionError(f"The sandbox of session {self.session.id} is {state.value}.")
        return SandboxConnection(
            type="sandlot", command=shlex.join(("sandlot", "shell", "--session", self.session.id))
        )

    @contextlib.asynccontextmanager
    async def _translated_errors(self, cwd: str | None = None) -> AsyncIterator[None]:
        """Convert errors to Inspect's: file errors, which a model can act on, or sandbox errors."""
        try:
            yield
        except errors.FileProblem as problem:
            raise os_error(problem) from problem
        except errors.InvalidRequest as error:
            if cwd is not None and await self._is_missing(cwd):
                raise FileNotFoundError(error.message) from error
            raise ValueError(error.message) from error
        except SandlotError as error:
            raise SandboxUnavailableError(f"{error.code}: {error.message}") from error

    async def _is_missing(self, folder: str) -> bool:
        with contextlib.suppress(SandlotError):
            return not await self.session.files.exists(folder)
        return False


def _settings(config: SandboxEnvironmentConfigType | None) -> SandlotConfig:
    if isinstance(config, SandlotConfig):
        return config
    if config is None:
        return SandlotConfig()
    if isinstance(config, str):
        # Inspect treats the string as a file name and prepends the task's folder.
        return SandlotConfig(environment=posixpath.basename(config))
    raise TypeError(f"sandbox must be a SandlotConfig or an environment's name, not {config!r}.")

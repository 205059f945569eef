"""Inspect: every sample of an evaluation in a sandbox of its own.

    Task(…, sandbox="sandlot")
    Task(…, sandbox=("sandlot", "gvisor"))    # an environment of the server's
    Task(…, sandbox=SandboxEnvironmentSpec("sandlot", SandlotConfig(environment="gvisor", lifetime_s=7200)))

SANDLOT_URL and SANDLOT_API_KEY name the server. Commands run as the sandbox's one user, who is not root.
``exec_remote`` and the tools that are built on it (``bash_session``, ``text_editor``) want to put a program
into /var/tmp, which is read-only here. Inspect must run on asyncio, as it does unless told otherwise.
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
from sandlot.integrations.foreground import kill_unwanted
from sandlot.integrations.os_files import os_error, write_over

logger = getLogger(__name__)

WORKSPACE: Final = "/workspace"
# Samples at once unless --max-sandboxes says otherwise: what a server on an ordinary machine carries.
SAMPLES_AT_ONCE: Final = 16
POLL_S: Final = 0.2  # a command costs milliseconds here
DELETED_WITHIN_S: Final = 30.0
# How `inspect sandbox cleanup` tells our sessions from others'.
MARK: Final = "inspect_task"


class SandlotConfig(BaseModel):
    """Seconds where not set are as the server's environment says: a long sample may want more of them."""

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

    # a sample's life

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        settings = _settings(config)
        client = AsyncClient()  # the sample's own, on the loop that it runs on
        try:
            # A cancelled request may have made a session that nobody knows of, so it is let finish.
            with anyio.CancelScope(shield=True):
                session = await client.create(
                    settings.environment,
                    env=settings.env,
                    idle_timeout_s=settings.idle_timeout_s,
                    lifetime_s=settings.lifetime_s,
                    metadata={MARK: task_name[:200]},
                )
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await client.aclose()
            if isinstance(error, SandlotError):
                raise RuntimeError(f"no sandbox for the sample: {error.message}") from error
            raise
        environment = cls(session)
        try:
            await anyio.lowlevel.checkpoint()  # cancelled meanwhile: here
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
        with anyio.move_on_after(DELETED_WITHIN_S, shield=True) as scope:
            try:
                await self.session.delete()
            except SandlotError as error:
                # An error here would take its result from the sample, and the session has a timeout.
                logger.warning("session %s is left to its timeout: %s", self.session.id, error.message)
            finally:
                await self.session.client.aclose()
        if scope.cancelled_caught:
            logger.warning("session %s is left to its timeout: no answer", self.session.id)

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """``id``: a session's; without it every session that Inspect has made with this server and key."""
        async with AsyncClient() as client:
            if id is not None:
                await (await client.get(id)).delete()
                return
            async for session in client.sessions():
                if MARK in session.info.metadata:
                    await session.delete()

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return SandlotConfig(**config)

    @classmethod
    def default_concurrency(cls) -> int | None:
        return SAMPLES_AT_ONCE

    def default_polling_interval(self) -> float:
        return POLL_S

    # commands

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
        """Never runs twice, whatever ``timeout_retry`` says. Without a timeout the server's applies."""
        folder = posixpath.join(WORKSPACE, cwd or "")
        async with self._told(folder if cwd else None):
            await self._be(user)
            output, exited = await self._run(cmd, input, folder, env or {}, timeout)
        stdout, stderr = (output[channel].decode("utf-8", "replace") for channel in Channel)
        if exited.reason == "timeout":
            over = TimeoutError(f"the command was ended after {exited.duration_ms / 1000:.1f} seconds")
            over.truncated_output = stdout + stderr  # type: ignore[attr-defined]  # where Inspect looks for it
            raise over
        if exited.reason == "start_failed" and exited.code == 126:
            raise PermissionError(exited.error)
        return ExecResult(exited.code == 0, exited.code, stdout, stderr)

    async def _run(
        self, cmd: list[str], input: str | bytes | None, cwd: str, env: dict[str, str], timeout: float | None
    ) -> tuple[dict[Channel, bytearray], Exited]:
        """Streamed: input and output may be larger than a request, and the limit is each channel's own."""
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
                        kept = output[event.channel]
                        kept += event.data
                        if len(kept) > limit:
                            raise OutputLimitExceededError(
                                SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR,
                                kept[:limit].decode("utf-8", "replace"),
                            )
        except (asyncio.CancelledError, OutputLimitExceededError):
            await kill_unwanted(self.session, exec_id)
            raise
        raise errors.LinkInterrupted(f"no end of exec {exec_id} was heard")

    async def _be(self, user: str | None) -> None:
        if user is None:
            return
        if self._users is None:
            names = await self.session.run("id -u; id -un")
            self._users = frozenset(names.stdout.split())
        if user not in self._users:
            raise SandboxUserUnsupportedError(
                f"commands run as {' or '.join(sorted(self._users))} here, not as {user!r}"
            )

    # files

    async def write_file(self, file: str, contents: str | bytes) -> None:
        async with self._told():
            await write_over(self.session.files, file, contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        async with self._told():
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

    # the sandbox itself

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        try:
            await self._be(user)
            state = (await self.session.refresh()).state
        except SandlotError as error:
            raise ConnectionError(error.message) from error
        if state is not SessionState.ACTIVE:
            raise ConnectionError(f"the sandbox of session {self.session.id} is {state.value}")
        return SandboxConnection(
            type="sandlot", command=shlex.join(("sandlot", "shell", "--session", self.session.id))
        )

    @contextlib.asynccontextmanager
    async def _told(self, cwd: str | None = None) -> AsyncIterator[None]:
        """Errors as Inspect knows them: about files, which a model can act on, or about the sandbox."""
        try:
            yield
        except errors.FileProblem as problem:
            raise os_error(problem) from problem
        except errors.InvalidRequest as error:
            if cwd is not None and await self._misses(cwd):
                raise FileNotFoundError(error.message) from error
            raise ValueError(error.message) from error
        except SandlotError as error:
            raise SandboxUnavailableError(f"{error.code}: {error.message}") from error

    async def _misses(self, folder: str) -> bool:
        with contextlib.suppress(SandlotError):
            return not await self.session.files.exists(folder)
        return False


def _settings(config: SandboxEnvironmentConfigType | None) -> SandlotConfig:
    if isinstance(config, SandlotConfig):
        return config
    if config is None:
        return SandlotConfig()
    if isinstance(config, str):
        # Inspect takes it for a file's name and puts the task's folder before it.
        return SandlotConfig(environment=posixpath.basename(config))
    raise TypeError(f"the sandlot sandbox takes a SandlotConfig or an environment's name, not {config!r}")

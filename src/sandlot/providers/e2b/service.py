"""E2B's API through its official SDK. No other module imports the SDK, and its errors end here."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx
from e2b.exceptions import (
    AuthenticationException,
    NotFoundException,
    RateLimitException,
    SandboxException,
    SandboxNotRunningException,
    ServiceBusyException,
    TemplateException,
    TimeoutException,
)
from e2b.sandbox_async.commands.command_handle import AsyncCommandHandle

from e2b import AsyncSandbox, SandboxInfo, SandboxQuery
from sandlot.domain.errors import EngineProblem, EngineTimeout, ImageMissing, SandboxLost
from sandlot.providers.e2b.account import E2BAccount

# Seconds. A create waits for a machine; every other call is short.
CREATE_WITHIN_S: Final = 120.0
CALL_WITHIN_S: Final = 30.0
LEAVE_WITHIN_S: Final = 5.0
PAGE: Final = 100
MAX_PAGES: Final = 100
MAX_MESSAGE: Final = 300
_GONE: Final = (NotFoundException, SandboxNotRunningException)
_TEMPLATE: Final = re.compile(r"template", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RemoteRecord:
    """One sandbox as E2B lists it."""

    id: str
    metadata: Mapping[str, str]
    state: str
    started_at: float


class RemoteSandbox:
    """One sandbox as E2B knows it."""

    def __init__(self, account: E2BAccount, sandbox: AsyncSandbox) -> None:
        self._account = account
        self._sandbox = sandbox

    @property
    def id(self) -> str:
        return self._sandbox.sandbox_id

    async def write(self, path: str, content: bytes) -> None:
        with translated(self._account, "upload the agent to the sandbox"):
            await self._sandbox.files.write(
                path, content, user=self._account.user, gzip=True, request_timeout=CREATE_WITHIN_S
            )

    async def run(self, command: str) -> str:
        """Run a short command to its end and return its output. A failed one raises."""
        with translated(self._account, "prepare the sandbox"):
            result = await self._sandbox.commands.run(
                command, user=self._account.user, timeout=CALL_WITHIN_S, request_timeout=CALL_WITHIN_S
            )
            return result.stdout

    async def start(self, command: str, on_stdout: Callable[[str], Awaitable[None]]) -> RemoteProcess:
        with translated(self._account, "start the relay"):
            handle = await self._sandbox.commands.run(
                command,
                background=True,
                user=self._account.user,
                stdin=True,
                timeout=0,
                request_timeout=CALL_WITHIN_S,
                on_stdout=on_stdout,
                retain_output=False,
            )
        return RemoteProcess(self._account, handle)

    async def is_gone(self) -> bool:
        """Whether E2B says that the sandbox is not there any more. In doubt it is there."""
        try:
            return not await self._sandbox.is_running(request_timeout=CALL_WITHIN_S)
        except _GONE:
            return True
        except (SandboxException, httpx.HTTPError, OSError):
            return False


class RemoteProcess:
    def __init__(self, account: E2BAccount, handle: AsyncCommandHandle[Any]) -> None:
        self._account = account
        self._handle = handle

    async def send(self, text: bytes) -> None:
        with translated(self._account, "write to the relay"):
            await self._handle.send_stdin(text, request_timeout=CALL_WITHIN_S)

    async def wait(self) -> None:
        with translated(self._account, "read from the relay"):
            await self._handle.wait()

    async def leave(self) -> None:
        """Reads no more. The process runs on: the next relay ends it, or the silence does."""
        leaving = asyncio.ensure_future(self._handle.disconnect())
        done, _ = await asyncio.wait((leaving,), timeout=LEAVE_WITHIN_S)
        if not done:
            leaving.cancel()


class E2BService:
    def __init__(self, account: E2BAccount) -> None:
        self.account = account
        given = {
            "api_key": account.api_key,
            "api_url": account.api_url,
            "sandbox_url": account.sandbox_url,
        }
        self._options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}

    async def create(self, template: str, metadata: Mapping[str, str]) -> RemoteSandbox:
        """A sandbox without a network of its own: its connections go through the worker."""
        with translated(self.account, f"create a sandbox from template {template}"):
            try:
                sandbox = await AsyncSandbox.create(
                    template=template,
                    timeout=self.account.timeout_s,
                    metadata=dict(metadata),
                    allow_internet_access=False,
                    request_timeout=CREATE_WITHIN_S,
                    **self._options,
                )
            except SandboxException as error:
                if not _is_about_template(error):
                    raise
                raise ImageMissing(
                    f"E2B has no template {template}: {_told(self.account, error)}. Build it, or change the "
                    "environment's image."
                ) from _cause(self.account, error)
        return RemoteSandbox(self.account, sandbox)

    async def connect(self, remote_id: str) -> RemoteSandbox:
        with translated(self.account, "reach the sandbox"):
            sandbox = await AsyncSandbox.connect(
                remote_id,
                timeout=self.account.timeout_s,
                request_timeout=CALL_WITHIN_S,
                **self._options,
            )
        return RemoteSandbox(self.account, sandbox)

    async def list(self, metadata: Mapping[str, str]) -> Sequence[RemoteRecord]:
        found: list[RemoteRecord] = []
        with translated(self.account, "list the sandboxes"):
            pages = AsyncSandbox.list(
                query=SandboxQuery(metadata=dict(metadata)),
                limit=PAGE,
                request_timeout=CALL_WITHIN_S,
                **self._options,
            )
            for _ in range(MAX_PAGES):
                found.extend(_record(info) for info in await pages.next_items())
                if not pages.has_next:
                    return found
        raise EngineProblem(f"E2B lists more than {PAGE * MAX_PAGES} sandboxes of this worker.")

    async def kill(self, remote_id: str) -> None:
        """Succeeds if it is gone already."""
        with contextlib.suppress(SandboxLost), translated(self.account, "remove the sandbox"):
            await AsyncSandbox.kill(remote_id, request_timeout=CALL_WITHIN_S, **self._options)

    async def extend(self, remote_id: str) -> None:
        with translated(self.account, "extend the sandbox"):
            await AsyncSandbox.set_timeout(
                remote_id, self.account.timeout_s, request_timeout=CALL_WITHIN_S, **self._options
            )


def _record(info: SandboxInfo) -> RemoteRecord:
    return RemoteRecord(info.sandbox_id, info.metadata, info.state.value, info.started_at.timestamp())


def _is_about_template(error: SandboxException) -> bool:
    """The service has no code for it: an unknown template is 400 or 404, with these words."""
    if isinstance(error, TemplateException):
        return True
    return error.status_code in (400, 403, 404, None) and _TEMPLATE.search(str(error)) is not None


@contextlib.contextmanager
def translated(account: E2BAccount, call: str) -> Iterator[None]:
    """Raises the SDK's errors as the domain's. None of them shows the key, whatever the service answers."""
    try:
        yield
    except _GONE as error:
        raise SandboxLost(f"E2B has ended the sandbox (call: {call}).") from _cause(account, error)
    except AuthenticationException as error:
        raise EngineProblem(
            f"E2B refused the API key, so it was not possible to {call}. Check SANDLOT_E2B_API_KEY."
        ) from _cause(account, error)
    except (RateLimitException, ServiceBusyException) as error:
        raise EngineProblem(
            f"E2B is too busy for this worker, or its rate limit did not allow to {call}. Retry.",
            retryable=True,
            retry_after_s=5.0,
        ) from _cause(account, error)
    except TimeoutException as error:
        raise EngineTimeout(f"E2B did not answer in time: {call}.") from _cause(account, error)
    except (SandboxException, httpx.HTTPError, OSError) as error:
        status = getattr(error, "status_code", None)
        raise EngineProblem(
            f"E2B could not {call}: {_told(account, error)}.",
            retryable=status is None or status >= 500 or status == 429,
        ) from _cause(account, error)


def _told(account: E2BAccount, error: Exception) -> str:
    text = str(error) or type(error).__name__
    return account.without_key(text)[:MAX_MESSAGE].removesuffix(".")


def _cause(account: E2BAccount, error: Exception) -> Exception | None:
    """None if its text has the key: whoever logs the error would show it."""
    return None if account.api_key in repr(error) else error

"""Calls a script in Redis: one deadline per call, and Redis errors become ours."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import msgspec
from redis import exceptions
from redis.asyncio import Redis

from sandlot.domain.errors import SandlotError, Unavailable
from sandlot.domain.metrics.figures import Figures
from sandlot.domain.metrics.table import DIRECTORY_CALLS, DIRECTORY_SECONDS
from sandlot.fleet.redis.connections import MAX_CONNECTIONS
from sandlot.fleet.redis.lua import Script

RETRY_AFTER_S: Final = 1.0
# Error codes of temporary Redis errors, and what they mean.
_TEMPORARY: Final = {
    "OOM": "is out of memory",
    "READONLY": "is now a read-only replica",
    "LOADING": "is loading its data",
    "CLUSTERDOWN": "is part of a cluster that is down",
    "MASTERDOWN": "has lost its primary",
    "MISCONF": "cannot write to disk",
    "NOREPLICAS": "has too few replicas to accept writes",
    "BUSY": "is busy with another script",
    "TRYAGAIN": "is moving its keys",
}
# redis-py removes the code from some error messages and raises these classes instead.
_CLASSES: Final = {
    exceptions.OutOfMemoryError: "OOM",
    exceptions.ReadOnlyError: "READONLY",
    exceptions.BusyLoadingError: "LOADING",
    exceptions.MasterDownError: "MASTERDOWN",
    exceptions.ClusterDownError: "CLUSTERDOWN",
    exceptions.TryAgainError: "TRYAGAIN",
}
# What a script says that has met a command or key which its user may not use.
_NOT_PERMITTED: Final = ("The user executing the script", "ACL failure in script")


class ScriptCalls:
    """Runs scripts in Redis. ``common`` holds the arguments that every script gets. ``figures`` counts the
    calls.
    """

    def __init__(
        self,
        redis: Redis,
        prefix: str,
        deadline_s: float,
        common: dict[str, Any],
        figures: Figures | None = None,
    ) -> None:
        self._redis = redis
        self._prefix = prefix
        self._deadline_s = deadline_s
        self._common = common
        self._figures = figures or Figures(())
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)

    async def __call__(self, script: Script, arguments: dict[str, Any]) -> list[Any]:
        began, outcome = time.monotonic(), "failed"
        try:
            answer = await self._call(script, arguments)
            outcome = "answered"
            return answer
        except Unavailable:
            outcome = "unavailable"
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            self._figures.count(DIRECTORY_CALLS, script.name, outcome)
            self._figures.observe(DIRECTORY_SECONDS, time.monotonic() - began, script.name)

    async def _call(self, script: Script, arguments: dict[str, Any]) -> list[Any]:
        payload = msgspec.msgpack.encode(self._common | arguments)
        try:
            async with asyncio.timeout(self._deadline_s), self._slots:
                try:
                    return await self._evaluate("EVALSHA", script.sha, payload)
                except exceptions.NoScriptError:
                    return await self._evaluate("EVAL", script.text, payload)
        except (TimeoutError, exceptions.TimeoutError) as error:
            raise _unavailable(f"did not answer within {self._deadline_s:g} s", "timeout") from error
        except exceptions.RedisError as error:
            raise _translate(error) from error

    async def _evaluate(self, command: str, script: str, payload: bytes) -> list[Any]:
        try:
            answer: list[Any] = await self._redis.execute_command(command, script, 1, self._prefix, payload)  # type: ignore[no-untyped-call]
        except (exceptions.ReadOnlyError, exceptions.MasterDownError):
            # A replica now. A new connection to the same address may reach the primary.
            await self._redis.connection_pool.disconnect(inuse_connections=False)
            raise
        except RuntimeError as error:
            # uvloop raises this when a connection was reset since its last use.
            if "closed" not in str(error):
                raise
            raise exceptions.ConnectionError(str(error)) from error
        return answer

    async def close(self) -> None:
        await self._redis.aclose()
        manager = getattr(self._redis.connection_pool, "sentinel_manager", None)
        for sentinel in manager.sentinels if manager is not None else ():
            await sentinel.aclose()


def _translate(error: exceptions.RedisError) -> SandlotError:
    code = next((code for kind, code in _CLASSES.items() if isinstance(error, kind)), None)
    if code is None:
        code = str(error).partition(" ")[0]
    if code in _TEMPORARY:
        return _unavailable(f"{_TEMPORARY[code]} ({code})", code.lower())
    if isinstance(error, exceptions.AuthenticationError | exceptions.AuthorizationError):
        return _unavailable(f"rejected this process: {error}", "credentials")
    if isinstance(error, exceptions.NoPermissionError) or any(
        words in str(error) for words in _NOT_PERMITTED
    ):
        what = f"does not permit this to the member's user: {str(error).removesuffix('.')}"
        return _unavailable(f"{what}. Make its users again with deploy/redis/users", "permissions")
    if isinstance(error, exceptions.ConnectionError):
        return _unavailable(f"cannot be reached: {error}", "connection")
    return SandlotError(f"The fleet's directory failed in Redis: {error}")


def _unavailable(what: str, reason: str) -> Unavailable:
    return Unavailable(
        f"The fleet's directory is unavailable: Redis {what}. Running sandboxes continue. Retry.",
        retry_after_s=RETRY_AFTER_S,
        details={"reason": f"directory_{reason}"},
    )

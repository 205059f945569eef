"""One call of a script: its deadline, and Redis's refusals as errors of ours."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
from redis import exceptions
from redis.asyncio import Redis

from sandlot.domain.errors import SandlotError, Unavailable
from sandlot.fleet.scripts import Script

RETRY_AFTER_S: Final = 1.0
# First words of Redis's refusals that pass, and what they mean.
_REFUSALS: Final = {
    "OOM": "is out of memory",
    "READONLY": "is a read-only replica now",
    "LOADING": "is loading its data",
    "CLUSTERDOWN": "is part of a cluster that is down",
    "MASTERDOWN": "has lost its master",
    "MISCONF": "cannot write to its disk",
    "NOREPLICAS": "has too few replicas to accept writes",
    "BUSY": "is busy with another script",
    "TRYAGAIN": "is moving its keys",
}
# redis-py takes the first word of some refusals off and gives them classes instead.
_CLASSES: Final = {
    exceptions.OutOfMemoryError: "OOM",
    exceptions.ReadOnlyError: "READONLY",
    exceptions.BusyLoadingError: "LOADING",
    exceptions.MasterDownError: "MASTERDOWN",
    exceptions.ClusterDownError: "CLUSTERDOWN",
    exceptions.TryAgainError: "TRYAGAIN",
}


class ScriptCalls:
    """``always``: arguments of every script."""

    def __init__(self, redis: Redis, prefix: str, deadline_s: float, always: dict[str, Any]) -> None:
        self._redis = redis
        self._prefix = prefix
        self._deadline_s = deadline_s
        self._always = always

    async def __call__(self, script: Script, arguments: dict[str, Any]) -> list[Any]:
        payload = msgspec.msgpack.encode(self._always | arguments)
        try:
            async with asyncio.timeout(self._deadline_s):
                try:
                    return await self._send("EVALSHA", script.sha, payload)
                except exceptions.NoScriptError:
                    return await self._send("EVAL", script.text, payload)
        except (TimeoutError, exceptions.TimeoutError) as error:
            raise _unavailable(f"does not answer within {self._deadline_s:g} s", "timeout") from error
        except exceptions.RedisError as error:
            raise _translate(error) from error

    async def _send(self, command: str, script: str, payload: bytes) -> list[Any]:
        answer: list[Any] = await self._redis.execute_command(  # type: ignore[no-untyped-call]
            command, script, 1, self._prefix, payload
        )
        return answer

    async def close(self) -> None:
        await self._redis.aclose()


def _translate(error: exceptions.RedisError) -> SandlotError:
    word = next((word for kind, word in _CLASSES.items() if isinstance(error, kind)), None)
    if word is None:
        word = str(error).partition(" ")[0]
    if word in _REFUSALS:
        return _unavailable(f"{_REFUSALS[word]} ({word})", word.lower())
    if isinstance(error, exceptions.AuthenticationError | exceptions.AuthorizationError):
        return _unavailable(f"refuses this process: {error}", "credentials")
    if isinstance(error, exceptions.ConnectionError):
        return _unavailable(f"cannot be reached: {error}", "connection")
    return SandlotError(f"the fleet's directory failed in Redis: {error}")


def _unavailable(what: str, reason: str) -> Unavailable:
    return Unavailable(
        f"the fleet's directory is not available: Redis {what}; running sandboxes go on, retry",
        retry_after_s=RETRY_AFTER_S,
        details={"reason": f"directory_{reason}"},
    )

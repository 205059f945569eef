"""One call of a script: its deadline, and Redis's refusals as errors of ours."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection

from sandlot.domain.errors import SandlotError, Unavailable
from sandlot.fleet.connecting import MAX_CONNECTIONS
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
    """``always``: arguments of every script.

    Connections are kept here and not given back to redis-py's pool after each call: what it does then, and
    when one is taken again, takes half as long as the call. Whether one is still alive shows when it is used.
    """

    def __init__(self, redis: Redis, prefix: str, deadline_s: float, always: dict[str, Any]) -> None:
        self._redis = redis
        self._pool = redis.connection_pool
        self._prefix = prefix
        self._deadline_s = deadline_s
        self._always = always
        self._turns = asyncio.Semaphore(MAX_CONNECTIONS)
        self._idle: list[AbstractConnection] = []
        self._closed = False

    async def __call__(self, script: Script, arguments: dict[str, Any]) -> list[Any]:
        payload = msgspec.msgpack.encode(self._always | arguments)
        try:
            async with asyncio.timeout(self._deadline_s), self._turns:
                try:
                    return await self._send("EVALSHA", script.sha, payload)
                except exceptions.NoScriptError:
                    return await self._send("EVAL", script.text, payload)
        except (TimeoutError, exceptions.TimeoutError) as error:
            raise _unavailable(f"does not answer within {self._deadline_s:g} s", "timeout") from error
        except exceptions.RedisError as error:
            raise _translate(error) from error

    async def _send(self, command: str, script: str, payload: bytes) -> list[Any]:
        while self._idle:
            connection = self._idle.pop()
            if self._is_elsewhere(connection):
                await self._drop(connection)
                continue
            try:
                return await self._send_on(connection, command, script, payload)
            except exceptions.ConnectionError:
                # It may have died while it lay here, and the others with it. Scripts bear being sent twice.
                await self._drop_idle()
        fresh = await self._pool.get_connection()  # type: ignore[no-untyped-call]
        return await self._send_on(fresh, command, script, payload)

    def _is_elsewhere(self, connection: AbstractConnection) -> bool:
        """Whether Sentinels have named another Redis since: nothing more is said to this one."""
        named = getattr(self._pool, "master_address", None)
        return named is not None and named != (
            getattr(connection, "host", ""),
            getattr(connection, "port", 0),
        )

    async def _send_on(
        self, connection: AbstractConnection, command: str, script: str, payload: bytes
    ) -> list[Any]:
        try:
            await connection.send_command(command, script, 1, self._prefix, payload)
            answer: list[Any] = await connection.read_response()
        except (exceptions.ReadOnlyError, exceptions.MasterDownError):
            # A replica now: behind the same address there may be another primary, for a new connection.
            await self._drop(connection)
            await self._drop_idle()
            raise
        except exceptions.ResponseError:
            await self._keep(connection)
            raise
        except BaseException as error:
            await self._drop(connection)
            # How uvloop says that a connection was reset since its last use.
            if isinstance(error, RuntimeError) and "closed" in str(error):
                raise exceptions.ConnectionError(str(error)) from error
            raise
        await self._keep(connection)
        return answer

    async def _keep(self, connection: AbstractConnection) -> None:
        if self._closed:
            await self._drop(connection)
        else:
            self._idle.append(connection)

    async def _drop_idle(self) -> None:
        while self._idle:
            await self._drop(self._idle.pop())

    async def _drop(self, connection: AbstractConnection) -> None:
        await connection.disconnect(nowait=True)
        await self._pool.release(connection)

    async def close(self) -> None:
        self._closed = True
        await self._drop_idle()
        await self._redis.aclose()
        asked = getattr(self._pool, "sentinel_manager", None)
        for sentinel in asked.sentinels if asked is not None else ():
            await sentinel.aclose()


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

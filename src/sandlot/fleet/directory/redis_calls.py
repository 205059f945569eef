"""Calls a script in Redis: one deadline per call, and Redis errors become ours."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection

from sandlot.domain.errors import SandlotError, Unavailable
from sandlot.fleet.directory.lua import Script
from sandlot.fleet.directory.redis_connections import MAX_CONNECTIONS

RETRY_AFTER_S: Final = 1.0
# Error codes of temporary Redis errors, and what they mean.
_TEMPORARY: Final = {
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
# redis-py removes the code from some error messages and raises these classes instead.
_CLASSES: Final = {
    exceptions.OutOfMemoryError: "OOM",
    exceptions.ReadOnlyError: "READONLY",
    exceptions.BusyLoadingError: "LOADING",
    exceptions.MasterDownError: "MASTERDOWN",
    exceptions.ClusterDownError: "CLUSTERDOWN",
    exceptions.TryAgainError: "TRYAGAIN",
}


class ScriptCalls:
    """Runs scripts in Redis. ``common`` holds the arguments that every script gets.

    Connections stay here and do not return to redis-py's pool after each call, because releasing
    and acquiring one takes half as long as the call itself. A dead connection shows when it is
    used.
    """

    def __init__(self, redis: Redis, prefix: str, deadline_s: float, common: dict[str, Any]) -> None:
        self._redis = redis
        self._pool = redis.connection_pool
        self._prefix = prefix
        self._deadline_s = deadline_s
        self._common = common
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)
        self._idle: list[AbstractConnection] = []
        self._closed = False

    async def __call__(self, script: Script, arguments: dict[str, Any]) -> list[Any]:
        payload = msgspec.msgpack.encode(self._common | arguments)
        try:
            async with asyncio.timeout(self._deadline_s), self._slots:
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
            if self._is_to_old_master(connection):
                await self._drop(connection)
                continue
            try:
                return await self._send_on(connection, command, script, payload)
            except exceptions.ConnectionError:
                # It may have died while idle, and the others with it. Scripts may be sent twice.
                await self._drop_idle()
        fresh = await self._pool.get_connection()  # type: ignore[no-untyped-call]
        return await self._send_on(fresh, command, script, payload)

    def _is_to_old_master(self, connection: AbstractConnection) -> bool:
        """Whether the Sentinels have named another Redis since. Send nothing more to this one."""
        master = getattr(self._pool, "master_address", None)
        return master is not None and master != (
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
            # A replica now. A new connection to the same address may reach the primary.
            await self._drop(connection)
            await self._drop_idle()
            raise
        except exceptions.ResponseError:
            await self._keep(connection)
            raise
        except BaseException as error:
            await self._drop(connection)
            # uvloop raises this when a connection was reset since its last use.
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
        manager = getattr(self._pool, "sentinel_manager", None)
        for sentinel in manager.sentinels if manager is not None else ():
            await sentinel.aclose()


def _translate(error: exceptions.RedisError) -> SandlotError:
    code = next((code for kind, code in _CLASSES.items() if isinstance(error, kind)), None)
    if code is None:
        code = str(error).partition(" ")[0]
    if code in _TEMPORARY:
        return _unavailable(f"{_TEMPORARY[code]} ({code})", code.lower())
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

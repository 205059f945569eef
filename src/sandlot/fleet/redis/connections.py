"""Connections to the fleet's Redis, at a fixed address or at the address that Sentinels name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from redis import exceptions
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from sandlot.domain.errors import InvalidRequest

# Connections per process. A call uses one for well under a millisecond. redis-py's pool raises an
# error beyond this number, so ``ScriptCalls`` never asks for more.
MAX_CONNECTIONS: Final = 16


def connect(
    url: str,
    deadline_s: float,
    sentinels: Sequence[str] = (),
    sentinel_name: str = "sandlot",
    sentinel_password: str | None = None,
) -> Redis:
    if sentinels:
        return _connect_by_sentinels(sentinels, sentinel_name, sentinel_password, url, deadline_s)
    with _url_errors():
        pool = ConnectionPool.from_url(url, max_connections=MAX_CONNECTIONS, **_options(deadline_s))
        # This opens nothing, but reports invalid options now and not in the first call.
        pool.make_connection()  # type: ignore[no-untyped-call]
    return Redis.from_pool(pool)


def _connect_by_sentinels(
    sentinels: Sequence[str], name: str, password: str | None, url: str, deadline_s: float
) -> Redis:
    """Connect to the Redis that the Sentinels name.

    ``password`` is that of the Sentinels. Only the credentials and the database of ``url`` count.
    """
    if url.startswith("rediss:"):
        raise InvalidRequest("TLS is not supported for a Redis behind Sentinels. Use a redis:// URL.")
    with _url_errors():
        from_url = {
            key: value for key, value in parse_url(url).items() if key in ("username", "password", "db")
        }
    # One call's deadline must cover all Sentinels and the Redis that they name. Otherwise the other
    # Sentinels would never be asked while the first one is silent.
    each_s = deadline_s / (len(sentinels) + 1)
    sentinel_client = Sentinel(  # type: ignore[no-untyped-call]
        [_address(sentinel) for sentinel in sentinels],
        sentinel_kwargs={
            "password": password,
            "socket_timeout": each_s,
            "socket_connect_timeout": each_s,
            "retry": Retry(NoBackoff(), 0),
        },
        max_connections=MAX_CONNECTIONS,
        **_options(deadline_s),
        **from_url,
    )
    master: Redis = sentinel_client.master_for(name)
    return master


def _options(deadline_s: float) -> dict[str, Any]:
    # Retry once, without a pause: a connection may have died while idle, which uvloop reports as a
    # RuntimeError. Scripts may be sent twice.
    retry = Retry(
        NoBackoff(),
        1,
        supported_errors=(exceptions.ConnectionError, RuntimeError),  # type: ignore[arg-type]
    )
    return {
        # Each call has one deadline for everything. A timeout for each read and write costs more
        # time than the reads and writes.
        "socket_timeout": None,
        "socket_connect_timeout": deadline_s,
        "retry": retry,
        # Send no handshake before the first call: each command costs a round trip, and all of them
        # share the call's deadline.
        "protocol": 2,
        "driver_info": None,
    }


@contextmanager
def _url_errors() -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, AttributeError, exceptions.RedisError):
        # Show neither the value nor redis-py's message: both may contain a password.
        raise InvalidRequest(
            "SANDLOT_REDIS_URL has an unsupported option after the question mark. Remove it."
        ) from None


def _address(text: str) -> tuple[str, int]:
    try:
        parsed = urlsplit(f"//{text}")
        if parsed.hostname:
            return parsed.hostname, parsed.port or 26379
    except ValueError:
        pass
    raise InvalidRequest(f"{text!r:.80} is not a Sentinel address. Use host:port, such as 10.0.0.5:26379.")

"""Connections to the fleet's Redis: at one address, or where Sentinels say that it is."""

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

# Connections of one process. A call holds one for well under a millisecond. A pool refuses more; whoever
# calls sees to it that there are none (``ScriptCalls``).
MAX_CONNECTIONS: Final = 16


def connect(url: str, deadline_s: float) -> Redis:
    with _url_read():
        pool = ConnectionPool.from_url(url, max_connections=MAX_CONNECTIONS, **_options(deadline_s))
        # Not opened. What it does not take would otherwise come out of the first call.
        pool.make_connection()  # type: ignore[no-untyped-call]
    return Redis.from_pool(pool)


def connect_by_sentinels(
    sentinels: Sequence[str], name: str, password: str | None, url: str, deadline_s: float
) -> Redis:
    """``password``: the Sentinels'. ``url``: of it the credentials and the database count."""
    if url.startswith("rediss:"):
        raise InvalidRequest("a Redis behind Sentinels is reached without TLS here: give a redis:// URL")
    with _url_read():
        given = {key: value for key, value in parse_url(url).items() if key in ("username", "password", "db")}
    # All of them fit into one call's deadline, and the Redis that they name too. Otherwise the others would
    # never be asked as long as the first is silent.
    each_s = deadline_s / (len(sentinels) + 1)
    watched = Sentinel(  # type: ignore[no-untyped-call]
        [_address(sentinel) for sentinel in sentinels],
        sentinel_kwargs={
            "password": password,
            "socket_timeout": each_s,
            "socket_connect_timeout": each_s,
            "retry": Retry(NoBackoff(), 0),
        },
        max_connections=MAX_CONNECTIONS,
        **_options(deadline_s),
        **given,
    )
    found: Redis = watched.master_for(name)
    return found


def _options(deadline_s: float) -> dict[str, Any]:
    # One retry, at once: a connection may have died while it lay unused.
    retry = Retry(NoBackoff(), 1, supported_errors=(exceptions.ConnectionError,))
    return {
        # Calls have one deadline for all that they wait for; another for each read and write costs more than
        # the reading and writing.
        "socket_timeout": None,
        "socket_connect_timeout": deadline_s,
        "retry": retry,
        # Nothing is said before the first call: each word costs a round trip, and all have one deadline.
        "protocol": 2,
        "driver_info": None,
    }


@contextmanager
def _url_read() -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, AttributeError, exceptions.RedisError):
        # Without the value, and without what Redis's library says of it: there may be a password in it.
        raise InvalidRequest(
            "SANDLOT_REDIS_URL cannot be used: behind its ? there is what redis-py does not take"
        ) from None


def _address(text: str) -> tuple[str, int]:
    try:
        parsed = urlsplit(f"//{text}")
        if parsed.hostname:
            return parsed.hostname, parsed.port or 26379
    except ValueError:
        pass
    raise InvalidRequest(f"{text!r:.80} is not a Sentinel's address, such as 10.0.0.5:26379")

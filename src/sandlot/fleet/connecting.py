"""Connections to the fleet's Redis: at one address, or where Sentinels say that it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from sandlot.domain.errors import InvalidRequest

# Connections of one process. A call holds one for well under a millisecond; more callers wait for their turn.
MAX_CONNECTIONS: Final = 16
# Sentinel's pool refuses where the other waits, so it is given more than there are calls.
MAX_SENTINEL_CONNECTIONS: Final = 512


def connect(url: str, deadline_s: float) -> Redis:
    """A client whose every wait is bounded."""
    pool = BlockingConnectionPool.from_url(
        url, max_connections=MAX_CONNECTIONS, timeout=deadline_s, **_bounds(deadline_s)
    )
    return Redis.from_pool(pool)


def connect_by_sentinels(sentinels: Sequence[str], name: str, url: str, deadline_s: float) -> Redis:
    """``url``: of it the credentials and the database count."""
    if url.startswith("rediss:"):
        raise InvalidRequest("a Redis behind Sentinels is reached without TLS here: give a redis:// URL")
    given = {key: value for key, value in parse_url(url).items() if key in ("username", "password", "db")}
    watched = Sentinel(  # type: ignore[no-untyped-call]
        [_address(sentinel) for sentinel in sentinels],
        sentinel_kwargs={"socket_timeout": deadline_s, "socket_connect_timeout": deadline_s},
        max_connections=MAX_SENTINEL_CONNECTIONS,
        **_bounds(deadline_s),
        **given,
    )
    found: Redis = watched.master_for(name)
    return found


def _bounds(deadline_s: float) -> dict[str, Any]:
    # One retry, at once: a connection may have died while it lay unused.
    retry = Retry(NoBackoff(), 1, supported_errors=(exceptions.ConnectionError,))
    return {
        "socket_timeout": deadline_s,
        "socket_connect_timeout": deadline_s,
        "retry": retry,
        # Nothing is said before the first call: each word costs a round trip, and all have one deadline.
        "protocol": 2,
        "driver_info": None,
    }


def _address(text: str) -> tuple[str, int]:
    try:
        parsed = urlsplit(f"//{text}")
        if parsed.hostname:
            return parsed.hostname, parsed.port or 26379
    except ValueError:
        pass
    raise InvalidRequest(f"{text!r:.80} is not a Sentinel's address, such as 10.0.0.5:26379")

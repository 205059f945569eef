from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandlot.testing.directory_suite.redis_server import RedisServer, redis_server


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """One for all tests that leave it as it was; each takes a cell of its own."""
    with redis_server() as server:
        yield server

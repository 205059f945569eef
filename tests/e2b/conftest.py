"""Servers for E2B's SDKs, as processes of their own, and keys in the form that all versions accept."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from sandlot.domain.e2b.names import key_for_e2b
from tests.faults.rig import ServerProcess

SERVER_KEY = "the-key-of-the-server-0123456789"
E2B_KEY = key_for_e2b(SERVER_KEY)


@pytest.fixture(scope="session")
def e2b_server() -> Iterator[ServerProcess]:
    server = ServerProcess(api_key=SERVER_KEY, pool_size="3", max_pool_size="6", orphan_grace_s="30")
    try:
        asyncio.run(server.start())
        yield server
    finally:
        asyncio.run(server.clean())

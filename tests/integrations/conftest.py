"""One server for all tests of adapters, as a process of its own: they are used from plain code and from loops."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator

import pytest

from sandlot import Client
from tests.faults.rig import ServerProcess


@pytest.fixture(scope="session")
def agent_server() -> Iterator[ServerProcess]:
    server = ServerProcess(pool_size="4", max_pool_size="6", orphan_grace_s="30")
    try:
        asyncio.run(server.start())
        yield server
    finally:
        asyncio.run(server.clean())


@pytest.fixture
def client(agent_server: ServerProcess) -> Iterator[Client]:
    with Client(agent_server.url) as client:
        yield client


@pytest.fixture
def thread(client: Client) -> Iterator[str]:
    """A conversation's id; what sandboxes it and its parts have are gone after the test."""
    name = f"thread-{secrets.token_hex(6)}"
    yield name
    for session in client.sessions():
        if session.thread is not None and session.thread.partition("/")[0] == name:
            session.delete()

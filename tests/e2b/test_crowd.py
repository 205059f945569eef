"""100 sandboxes at once by E2B's asynchronous SDK."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from tests.e2b.clients import NEWEST, ROOT, run
from tests.e2b.conftest import E2B_KEY, SERVER_KEY
from tests.faults.rig import ServerProcess

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.alone]

COUNT = 100
WARM_WITHIN_S = 120.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """With a warm pool for all of them, as an operator who expects them would have it."""
    folder = tmp_path / "environments"
    folder.mkdir()
    for name in ("base", "slim"):
        recipe = yaml.safe_load((ROOT / f"registry/environments/{name}.yaml").read_text())
        if name == "slim":
            recipe["pool"] = {"size": COUNT, "min": COUNT, "max": COUNT}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(recipe))
    server = ServerProcess(
        api_key=SERVER_KEY, registry=tmp_path, pool_size="0", min_pool_size="0", create_concurrency="4"
    )
    try:
        asyncio.run(server.start())
        yield server
    finally:
        asyncio.run(server.clean())


def test_a_hundred_sandboxes_at_once(server: ServerProcess) -> None:
    wait_until_warm(server)
    found = run(NEWEST, "crowd_calls.py", server.url, E2B_KEY, str(COUNT))
    assert found.checks == {"crowd": ""}
    assert found.calls["async AsyncSandbox.create"] == COUNT


def wait_until_warm(server: ServerProcess) -> None:
    deadline = time.monotonic() + WARM_WITHIN_S
    headers = {"Authorization": f"Bearer {SERVER_KEY}"}
    while httpx.get(f"{server.url}/v1/health", headers=headers).json()["pools"]["slim"]["ready"] < COUNT:
        assert time.monotonic() < deadline, "the pool did not become warm"
        time.sleep(0.5)

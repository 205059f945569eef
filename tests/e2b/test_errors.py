"""Each refusal of the server is the exception that E2B's SDK has for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from sandlot.domain.e2b.names import key_for_e2b
from tests.btrfs_storage import btrfs_storage
from tests.e2b.clients import NEWEST, Found, checks_in, run
from tests.e2b.conftest import E2B_KEY, SERVER_KEY
from tests.faults.rig import ServerProcess

pytestmark = pytest.mark.docker

PROGRAM = "error_calls.py"


@pytest.fixture(scope="module")
def found() -> Iterator[Found]:
    with btrfs_storage() as folder:
        server = ServerProcess(
            api_key=SERVER_KEY,
            workspace_store="btrfs",
            storage_dir=str(folder),
            workspace_quota="64m",
            max_sessions="4",
        )
        try:
            asyncio.run(server.start())
            yield run(NEWEST, PROGRAM, server.url, json.dumps(keys_of(server)))
        finally:
            asyncio.run(server.clean())


def keys_of(server: ServerProcess) -> dict[str, str]:
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {SERVER_KEY}"}) as http:

        def new(name: str, **options: Any) -> str:
            answer = http.post("/v1/keys", json={"name": name, "tenant": name, **options})
            assert answer.status_code == 201, answer.text
            body = answer.json()
            if name == "revoked":
                http.delete(f"/v1/keys/{body['key']['id']}").raise_for_status()
            return key_for_e2b(body["secret"])

        return {
            "server": E2B_KEY,
            "limited": new("limited", limits={"sessions": 1}),
            "slow": new("slow", limits={"calls_per_s": 0.002}),
            "reader": new("reader", scopes=["sessions:read"]),
            "revoked": new("revoked"),
        }


@pytest.mark.parametrize("check", checks_in(PROGRAM))
def test_error(found: Found, check: str) -> None:
    found.assert_passed(check)

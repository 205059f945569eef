"""The server is killed and started again: E2B's code interpreter SDK goes on in the same sandbox, with its variables."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.code.conftest import declare, environment, kernel_image
from tests.e2b.clients import NEWEST, run
from tests.e2b.conftest import E2B_KEY, SERVER_KEY
from tests.faults.rig import ServerProcess

pytestmark = [pytest.mark.docker, pytest.mark.timeout(400)]

PROGRAM = "code/restart_calls.py"


async def test_variables_outlive_a_killed_server(tmp_path: Path) -> None:
    await asyncio.to_thread(kernel_image)
    registry = declare(tmp_path / "registry", environment("base"), environment("code"))
    server = ServerProcess(api_key=SERVER_KEY, registry=registry, pool_size="1")

    async def programs(when: str) -> dict[str, str]:
        runs = [
            asyncio.to_thread(run, NEWEST, PROGRAM, server.url, E2B_KEY, form, when)
            for form in ("sync", "async")
        ]
        return {
            f"{form} {check}": failure
            for form, found in zip(("sync", "async"), await asyncio.gather(*runs), strict=True)
            for check, failure in found.checks.items()
        }

    try:
        await server.start()
        before = await programs("before")
        assert set(before.values()) == {""}, before
        await server.kill()
        await server.start()
        after = await programs("after")
        assert set(after.values()) == {""}, after
        assert len(after) == 8
        await server.settle()
    finally:
        await server.clean()

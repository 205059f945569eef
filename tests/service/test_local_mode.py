"""Local mode in several programs on one engine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sandlot.client.async_client import AsyncClient
from sandlot.wiring import local_service

pytestmark = [pytest.mark.docker, pytest.mark.slow]  # it waits for sweeps, in real time

SMALL: dict[str, Any] = {"pool_size": 1, "min_pool_size": 1, "max_pool_size": 1, "orphan_grace_s": 1.0}


async def test_two_programs_leave_each_others_sandboxes_alone(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each removes sandboxes that carry its name and that it does not know, so the names must differ."""
    monkeypatch.delenv("SANDLOT_WORKER_ID", raising=False)
    folders: list[Path] = [tmp_path_factory.mktemp(name) for name in ("a", "b")]
    first, second = [await local_service(data_dir=folder, **SMALL) for folder in folders]
    try:
        async with AsyncClient(service=first) as client:
            session = await client.create()
            await asyncio.sleep(4)  # the other sweeps every half second, and removes at its second sighting
            assert (await session.run("echo alive")).output == "alive\n"
    finally:
        await first.close()
        await second.close()

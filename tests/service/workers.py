"""A real worker on the Docker engine of this machine, with an owner and a data directory of its own."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from sandlot.domain.service import SandboxService
from sandlot.wiring import LocalWorker, local_service
from tests.docker.conftest import docker


@contextlib.asynccontextmanager
async def worker(*, max_execs: int) -> AsyncIterator[LocalWorker]:
    data_dir = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    try:
        service = await local_service(
            worker_id=f"test-service-{secrets.token_hex(4)}",
            data_dir=data_dir,
            max_execs=max_execs,
            allow_never=True,
            pool_size=4,
            min_pool_size=2,
            max_pool_size=6,
            overcommit_memory=100,
            overcommit_cpus=1000,
        )
        try:
            yield service
        finally:
            await service.close()
    finally:
        shutil.rmtree(data_dir, ignore_errors=True)


async def engine_call(service: SandboxService, verb: str, session_id: str, *options: str) -> None:
    """As somebody does who knows nothing of us: the engine is told to remove or to pause the container."""
    sandbox_id = (await service.get_session(session_id)).sandbox_id
    await asyncio.to_thread(docker, verb, *options, f"sandlot-{sandbox_id}")

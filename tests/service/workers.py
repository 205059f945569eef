"""A real worker on the Docker engine of this machine, with an owner and a data directory of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from sandlot.domain.service import SandboxService
from sandlot.wiring import LocalWorker, local_service
from tests.docker.conftest import docker


@contextlib.asynccontextmanager
async def worker(
    *, max_execs: int, policed: tuple[str, dict[str, Any]] | None = None, storage: Path | None = None
) -> AsyncIterator[LocalWorker]:
    """``policed``: an environment with a command policy, by its name and the policy's document. ``storage``: a
    folder on btrfs for workspaces; without one they are Docker volumes.
    """
    data_dir = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    try:
        service = await local_service(
            registry_dir=None if policed is None else declare(data_dir / "registry", *policed),
            worker_id=f"test-service-{secrets.token_hex(4)}",
            data_dir=data_dir,
            max_execs=max_execs,
            allow_never=True,
            **_workspaces(storage),
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


def _workspaces(storage: Path | None) -> dict[str, Any]:
    if storage is None:
        return {"workspace_store": "volume"}
    return {"workspace_store": "btrfs", "storage_dir": storage, "workspace_quota": 1024**3}


def declare(registry: Path, environment: str, policy: dict[str, Any]) -> Path:
    """A registry with this environment and its policy. JSON is YAML."""
    documents = {
        "environments": {
            "name": environment, "description": "x", "image": "sandlot/base", "policy": policy["name"],
        },
        "policies": policy,
    }  # fmt: skip
    for kind, document in documents.items():
        (registry / kind).mkdir(parents=True)
        (registry / kind / "file.yaml").write_text(json.dumps(document))
    return registry


async def engine_call(service: SandboxService, verb: str, session_id: str, *options: str) -> None:
    """As somebody does who knows nothing of us: the engine is told to remove or to pause the container."""
    sandbox_id = (await service.get_session(session_id)).sandbox_id
    await asyncio.to_thread(docker, verb, *options, f"sandlot-{sandbox_id}")

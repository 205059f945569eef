"""A real worker on the Docker engine of this machine, with an owner and a data directory of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from sandlot.domain.service import SandboxService
from sandlot.wiring import LocalWorker, local_service
from tests.code.conftest import KERNELS, kernel_image
from tests.docker.conftest import docker

# The environment of ``worker(coded=True)``, whose image has kernels.
CODED: str = KERNELS["name"]


@contextlib.asynccontextmanager
async def worker(
    *,
    max_execs: int,
    policed: tuple[str, dict[str, Any]] | None = None,
    coded: bool = False,
    storage: Path | None = None,
) -> AsyncIterator[LocalWorker]:
    """``policed``: an environment with a command policy, by its name and the policy's document. ``coded``: there is
    the environment ``CODED`` too. ``storage``: a folder on btrfs for workspaces; without one they are Docker volumes.
    """
    data_dir = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    documents = [] if policed is None else policed_documents(*policed)
    if coded:
        documents.append(await coded_document())
    try:
        service = await local_service(
            registry_dir=declare(data_dir / "registry", documents) if documents else None,
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


Document = tuple[str, dict[str, Any]]


def policed_documents(environment: str, policy: dict[str, Any]) -> list[Document]:
    declared = {"name": environment, "description": "x", "image": "sandlot/base", "policy": policy["name"]}
    return [("environments", declared), ("policies", policy)]


async def coded_document() -> Document:
    await asyncio.to_thread(kernel_image)
    return "environments", KERNELS


def declare(registry: Path, documents: Sequence[Document]) -> Path:
    """A registry of these documents, each with its folder. JSON is YAML."""
    for kind, document in documents:
        (registry / kind).mkdir(parents=True, exist_ok=True)
        (registry / kind / f"{document['name']}.yaml").write_text(json.dumps(document))
    return registry


async def engine_call(service: SandboxService, verb: str, session_id: str, *options: str) -> None:
    """As somebody does who knows nothing of us: the engine is told to remove or to pause the container."""
    sandbox_id = (await service.get_session(session_id)).sandbox_id
    await asyncio.to_thread(docker, verb, *options, f"sandlot-{sandbox_id}")

"""A real worker whose environments have kernels, in an image that builds in half a minute: Python and Bash only."""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sandlot.domain.code.contexts import Cell
from sandlot.domain.code.events import CellError, CellEvent, CellText, EventLines
from sandlot.domain.execution import ExecRequest, ExecResult
from sandlot.domain.service import SandboxService
from sandlot.domain.session import CreateSession
from sandlot.wiring import LocalWorker, local_service

TAG = "sandlot-test/kernels"
DOCKERFILE = """
FROM sandlot/base
RUN apt-get update \\
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \\
        python3-ipykernel python3-jupyter-client \\
    && rm -rf /var/lib/apt/lists/*
"""
# Two kernels at once need more than the default, and a slow start is not what is tested.
LIMITS = {"memory": "1g", "cpus": 1}


@cache
def kernel_image() -> str:
    """Takes a second when it was built before."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "Dockerfile").write_text(DOCKERFILE)
        ran = subprocess.run(
            ["/usr/bin/docker", "build", "--tag", TAG, folder], capture_output=True, text=True, timeout=600
        )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return TAG


def environment(name: str, **declared: Any) -> dict[str, Any]:
    return {"name": name, "description": "x", "image": TAG, "limits": LIMITS, **declared}


KERNELS = environment("kernels")
GVISOR = environment("gvisor-kernels", tier="runsc")


def declare(registry: Path, *environments: Mapping[str, Any]) -> Path:
    """A registry with these environments. JSON is YAML."""
    (registry / "environments").mkdir(parents=True)
    for each in environments:
        (registry / "environments" / f"{each['name']}.yaml").write_text(json.dumps(each))
    return registry


@asynccontextmanager
async def worker_with(
    *environments: Mapping[str, Any], data_dir: Path | None = None, **settings: Any
) -> AsyncIterator[LocalWorker]:
    """``data_dir``: of an earlier worker, whose sessions go on."""
    await asyncio.to_thread(kernel_image)
    folder = data_dir or Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    registry = folder / "registry"
    try:
        service = await local_service(
            registry_dir=registry if registry.exists() else declare(registry, *environments),
            data_dir=folder,
            worker_id=_worker_id(folder),
            overcommit_memory=100,
            overcommit_cpus=1000,
            workspace_store="volume",
            **settings,
        )
        try:
            yield service
        finally:
            await service.close()
    finally:
        if data_dir is None:
            shutil.rmtree(folder, ignore_errors=True)


def _worker_id(folder: Path) -> str:
    path = folder / "worker-id"
    if not path.exists():
        path.write_text(f"test-code-{secrets.token_hex(4)}")
    return path.read_text()


@dataclass(frozen=True)
class Ran:
    result: ExecResult
    events: Sequence[CellEvent]

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.of(CellText))

    @property
    def error(self) -> CellError:
        (error,) = self.of(CellError)
        return error  # type: ignore[no-any-return]


async def run(
    service: SandboxService, session_id: str, code: str, context: str = "python", **options: Any
) -> Ran:
    result = await service.execute(session_id, ExecRequest(cell=Cell(code, context), **options))
    return Ran(result, EventLines().feed(result.stdout))


async def value(
    service: SandboxService, session_id: str, code: str, context: str = "python", **options: Any
) -> str:
    """What the cell's last expression is, as text."""
    ran = await run(service, session_id, code, context, **options)
    assert ran.result.exit_code == 0, ran.events
    (main,) = [event for event in ran.events if getattr(event, "main", False)]
    return str(main.data["text/plain"])


@asynccontextmanager
async def new_session(service: SandboxService, environment: str, **options: Any) -> AsyncIterator[str]:
    session = (await service.create_session(CreateSession(environment=environment, **options))).session
    try:
        yield session.id
    finally:
        await service.delete_session(session.id)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def service() -> AsyncIterator[LocalWorker]:
    async with worker_with(KERNELS, GVISOR) as service:
        yield service


@pytest_asyncio.fixture(params=["runc", "runsc"], scope="session", loop_scope="session")
async def shared(request: pytest.FixtureRequest, service: LocalWorker) -> AsyncIterator[str]:
    """A session on each tier, for tests that leave its contexts alive."""
    name = {"runc": KERNELS, "runsc": GVISOR}[request.param]["name"]
    async with new_session(service, name) as session_id:
        yield session_id


@pytest_asyncio.fixture(loop_scope="session")
async def session(service: LocalWorker) -> AsyncIterator[str]:
    """A session of the test's own."""
    async with new_session(service, "kernels") as session_id:
        yield session_id

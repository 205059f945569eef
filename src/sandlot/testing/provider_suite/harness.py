"""The harness that a provider under test provides, and the fixtures that all cases share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace

import pytest
import pytest_asyncio

from sandlot.domain.capacity.limits import Limits
from sandlot.domain.environment import Environment
from sandlot.domain.errors import EngineTimeout
from sandlot.domain.execution import ExecRequest, ExecResult
from sandlot.domain.ids import new_sandbox_id
from sandlot.providers.base import Provider, Sandbox, SandboxSpec

DESTROY_WITHIN_S = 600.0


@dataclass
class Harness:
    """The provider under test and the environment of its sandboxes.

    ``reopen`` closes the provider and opens another on the same data, as a restarted worker does.
    """

    provider: Provider
    environment: Environment
    reopen: Callable[[], Awaitable[Provider]]
    made: list[str] = field(default_factory=list)

    async def create(self, limits: Limits | None = None) -> Sandbox:
        environment = self.environment if limits is None else replace(self.environment, limits=limits)
        spec = SandboxSpec(id=new_sandbox_id(), environment=environment)
        self.made.append(spec.id)
        return await self.provider.create(spec)

    async def destroy(self, sandbox_id: str) -> None:
        await destroy(self.provider, sandbox_id)

    async def clean(self) -> None:
        for sandbox_id in self.made:
            await self.destroy(sandbox_id)
        self.made.clear()


async def destroy(provider: Provider, sandbox_id: str) -> None:
    """Destroys a sandbox as a worker does: it asks again when the engine does not answer in time.

    Removing a gVisor sandbox mostly takes under a second. After a fork bomb it can take minutes:
    the shim may wait a second for each of hundreds of host processes. Meanwhile the engine answers
    no questions about that sandbox.
    """
    deadline = time.monotonic() + DESTROY_WITHIN_S
    while True:
        try:
            await provider.destroy(sandbox_id)
            break
        except EngineTimeout:
            if time.monotonic() > deadline:
                raise


@pytest.mark.asyncio(loop_scope="session")
class Cases:
    """Fixtures for every group of cases.

    Cases that leave their sandbox unchanged share ``sandbox``. The others get a ``fresh`` one each.
    """

    @pytest_asyncio.fixture(loop_scope="session", scope="class")
    @classmethod
    async def sandbox(cls, provider_harness: Harness) -> AsyncIterator[Sandbox]:
        sandbox = await provider_harness.create()
        yield sandbox
        await provider_harness.destroy(sandbox.id)

    @pytest_asyncio.fixture(loop_scope="session")
    async def fresh(self, provider_harness: Harness) -> AsyncIterator[Sandbox]:
        sandbox = await provider_harness.create()
        yield sandbox
        await provider_harness.destroy(sandbox.id)


async def run(
    sandbox: Sandbox,
    command: str,
    *,
    stdin: bytes | None = None,
    timeout_s: float = 30,
    shell: str | None = None,
    cwd: str | None = None,
    env: dict[str, str] | None = None,
    output_limit: int | None = 1024 * 1024,
    merge_output: bool = False,
) -> ExecResult:
    request = ExecRequest(
        command=command,
        timeout_s=timeout_s,
        shell=shell,
        cwd=cwd,
        env=env or {},
        output_limit=output_limit,
        merge_output=merge_output,
        stdin=stdin is not None,
    )
    return await asyncio.wait_for(sandbox.run(request, stdin), timeout_s + 30)


async def ok(sandbox: Sandbox, command: str, **options: object) -> str:
    """Runs a command that must succeed and returns its output as text."""
    result = await run(sandbox, command, **options)  # type: ignore[arg-type]
    assert result.exit_code == 0, result
    return result.output.decode()


async def require(sandbox: Sandbox, program: str) -> None:
    result = await run(sandbox, f"command -v {program}")
    if result.exit_code != 0:
        pytest.skip(f"the image has no {program}")

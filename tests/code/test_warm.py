"""Kernels that start before there is a session, and kernels that outlive their worker."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import pytest

from sandlot.config.registry.policies import shipped_policy
from sandlot.domain.code.contexts import Cell, CreateContext, Language
from sandlot.domain.errors import PolicyDenied
from sandlot.domain.execution import ExecRequest
from sandlot.domain.policy.cells import commands_of
from sandlot.domain.session import CreateSession
from sandlot.testing.eventually import eventually
from tests.code.conftest import KERNELS, environment, new_session, run, value, worker_with

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

WARM = environment("warm", contexts=["python"], pool={"size": 1, "min": 1, "max": 1})
POLICED = environment("policed", policy="validation")
FIRST_CELL_S = 0.5  # a cold kernel takes a second and more on a quiet machine


async def test_a_warm_kernel_gets_its_sessions_variables_and_files() -> None:
    async with worker_with(WARM) as service:

        async def ready() -> bool:
            return service.room()["warm"][0] == 1

        await eventually(ready, 60)
        created = await service.create_session(CreateSession(environment="warm", env={"MINE": "yes"}))
        session = created.session.id
        began = time.monotonic()
        assert await value(service, session, "import os; os.environ.get('MINE')") == "'yes'"
        assert time.monotonic() - began < FIRST_CELL_S
        await run(service, session, "open('kept.txt', 'w').write('kept')")
        assert (await service.execute(session, ExecRequest("cat kept.txt"))).stdout == b"kept"
        await service.hibernate_session(session)
        await eventually(ready, 60)
        # The files are renamed into a warm sandbox, beneath a kernel that runs already.
        assert await value(service, session, "open('kept.txt').read()") == "'kept'"
        await service.delete_session(session)


async def test_state_outlives_the_worker() -> None:
    folder = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    try:
        async with worker_with(KERNELS, data_dir=folder, keep_sessions=True) as service:
            session = (await service.create_session(CreateSession(environment="kernels"))).session.id
            await run(service, session, "x = 41")
            await service.create_context(session, CreateContext(Language.BASH, "mine"))
        async with worker_with(data_dir=folder, keep_sessions=True) as service:
            assert await value(service, session, "x + 1") == "42"
            assert (await run(service, session, "echo here", "mine")).text == "here\n"
            await service.delete_session(session)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def test_a_policy_holds_for_cells_in_every_context() -> None:
    async with worker_with(POLICED) as service, new_session(service, "policed") as session:
        await service.create_context(session, CreateContext(Language.BASH, "mine"))
        for code, context in (("rm -rf /", "bash"), ("rm -rf /", "mine"), ("x = 1\n!rm -rf /", "python")):
            with pytest.raises(PolicyDenied):
                await run(service, session, code, context)
        assert await value(service, session, "1 + 1") == "2"


async def test_what_a_policy_sees_of_python() -> None:
    def lines(code: str) -> list[str | None]:
        return [line for line, _ in commands_of(ExecRequest(cell=Cell(code)), Language.PYTHON)][1:]

    assert lines("x = 1") == []
    assert lines("!ls\nfiles = !cat a\n  !!pwd\n%sx who\nif x != 1: pass") == ["ls", "cat a", "pwd", "who"]
    assert lines("%%bash -e\nrm x\nls") == ["rm x\nls"]
    assert shipped_policy("validation").name == "validation"

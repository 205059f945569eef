"""Contexts: their variables, and how they are listed, interrupted, restarted and deleted."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.client.code.async_code import AsyncCodeContext
from sandlot.domain.code.contexts import Cell, CreateContext, Language
from sandlot.domain.errors import InvalidRequest, NotFound, SandlotError, Unsupported
from sandlot.domain.execution import ExecRequest
from sandlot.domain.service import SandboxService
from sandlot.testing.eventually import eventually
from sandlot.testing.service_suite.contexts.cells import WAIT_S
from sandlot.testing.service_suite.contexts.coded import CodeCases
from sandlot.testing.service_suite.harness import Cases, ServiceHarness, raises_within


class ContextCases(CodeCases):
    async def test_contexts_have_variables_of_their_own(self, kernel: AsyncSession) -> None:
        await kernel.code.run("x = 'default'", check=True)
        other = await kernel.code.create()
        assert other.info is not None
        assert (other.info.language, other.info.cwd) == (Language.PYTHON, "/workspace")
        missing = await other.run("x")
        assert missing.error is not None
        assert missing.error.name == "NameError"
        await other.run("x = 'other'", check=True)
        assert (await kernel.code.run("x")).text == "'default'"
        assert (await kernel.code.run("x", context=other)).text == "'other'"
        assert (await kernel.code.get(other.id).run("x")).text == "'other'"

    async def test_contexts_are_listed(self, kernel: AsyncSession) -> None:
        assert await kernel.code.contexts() == []
        await kernel.code.run("1", check=True)
        await kernel.code.run("2", check=True)
        named = await kernel.code.create("python", id="analysis", cwd="/tmp")
        again = await kernel.code.create("python", id="analysis", cwd="/tmp")
        assert again.id == named.id == "analysis"
        listed = {each.id: each.info for each in await kernel.code.contexts()}
        assert sorted(listed) == ["analysis", "python"]
        default, own = listed["python"], listed["analysis"]
        assert default is not None
        assert own is not None
        assert (default.language, default.executions, default.busy) == (Language.PYTHON, 2, False)
        assert (own.cwd, own.executions, own.restarts) == ("/tmp", 0, 0)

    async def test_an_interrupt_keeps_variables(self, kernel: AsyncSession) -> None:
        context = await kernel.code.create()
        await context.run("import time\nkept = 7", check=True)
        running = asyncio.ensure_future(context.run("time.sleep(60)"))
        await eventually(lambda: _busy(kernel, context), WAIT_S, "the context is busy")
        await context.interrupt()
        result = await asyncio.wait_for(running, WAIT_S)
        assert not result.ok
        assert result.error is not None
        assert result.error.name == "KeyboardInterrupt"
        assert (await context.run("kept")).text == "7"

    async def test_a_restart_forgets_variables(self, kernel: AsyncSession) -> None:
        context = await kernel.code.create()
        await context.run("import time\ngone = 8", check=True)
        running = asyncio.ensure_future(context.run("time.sleep(60)"))
        await eventually(lambda: _busy(kernel, context), WAIT_S, "the context is busy")
        await context.restart()
        result = await asyncio.wait_for(running, WAIT_S)
        assert not result.ok
        assert result.error is not None
        assert result.error.name == "KernelRestarted"
        assert context.info is not None
        assert context.info.restarts == 1
        after = await context.run("gone")
        assert after.error is not None
        assert after.error.name == "NameError"

    async def test_a_deleted_context_is_gone(self, kernel: AsyncSession) -> None:
        context = await kernel.code.create()
        await context.run("x = 1", check=True)
        await context.delete()
        await context.delete()
        assert context.id not in [each.id for each in await kernel.code.contexts()]
        await raises_within(lambda: context.run("x"), NotFound, WAIT_S)
        for call in (context.interrupt, context.restart):
            with pytest.raises(NotFound):
                await call()

    async def test_contexts_that_are_none(self, kernel: AsyncSession) -> None:
        for language, id in (("pyton", None), ("python", "Not An Id"), ("python", "javascript")):
            with pytest.raises(InvalidRequest):
                await kernel.code.create(language, id=id)  # type: ignore[arg-type]


class ForeignContextCases(CodeCases):
    async def test_contexts_of_another_tenant(self, kernel: AsyncSession, stranger: AsyncClient) -> None:
        await kernel.code.run("secret = 1", check=True)
        await _all_raise(stranger.service, kernel.id, NotFound)
        assert (await kernel.code.run("secret")).text == "1"


class NoContextCases(Cases):
    async def test_an_image_without_kernels(
        self, service_harness: ServiceHarness, session: AsyncSession
    ) -> None:
        if service_harness.coded is not None:
            pytest.skip("this service has an environment with kernels")
        with pytest.raises(Unsupported, match="kernel"):
            await session.code.run("1")
        with pytest.raises(Unsupported):
            await session.code.create()
        with pytest.raises(Unsupported):
            await session.code.contexts()


async def _busy(session: AsyncSession, context: AsyncCodeContext) -> bool:
    return any(
        each.info is not None and each.info.busy
        for each in await session.code.contexts()
        if each.id == context.id
    )


async def _all_raise(service: SandboxService, session_id: str, error: type[SandlotError]) -> None:
    for call in (
        lambda: service.list_contexts(session_id),
        lambda: service.create_context(session_id, CreateContext()),
        lambda: service.interrupt_context(session_id, "python"),
        lambda: service.restart_context(session_id, "python"),
        lambda: service.delete_context(session_id, "python"),
        lambda: service.execute(session_id, ExecRequest(cell=Cell("secret"))),
        lambda: service.start_exec(session_id, ExecRequest(cell=Cell("secret"))),
    ):
        with pytest.raises(error):
            await call()

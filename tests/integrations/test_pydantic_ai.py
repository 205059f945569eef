"""Pydantic AI's own suite for workspace backends, and what an agent sees of one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.workspaces import (
    WorkspaceBackend,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from sandlot import AsyncClient, Client
from sandlot.domain.errors import NotFound, SandboxLost, Unavailable
from sandlot.integrations.pydantic_ai import SandlotWorkspace, SandlotWorkspaceBackend
from sandlot.testing.eventually import eventually
from tests.faults.rig import ServerProcess, free_port

pytestmark = pytest.mark.docker

Make = Callable[..., SandlotWorkspaceBackend]


@pytest.fixture
async def async_client(agent_server: ServerProcess) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(agent_server.url) as client:
        yield client


async def destroy(client: AsyncClient, ref: WorkspaceRef | None) -> None:
    if ref is not None:
        with contextlib.suppress(NotFound):
            await (await client.get(ref.id)).delete()


@pytest.fixture
async def make(async_client: AsyncClient) -> AsyncIterator[Make]:
    """Builds backends; the sandboxes that they make are gone after the test."""
    backends = []

    def build(**options: object) -> SandlotWorkspaceBackend:
        backends.append(SandlotWorkspaceBackend(async_client, **options))
        return backends[-1]

    yield build
    for backend in backends:
        await destroy(async_client, backend.ref)


class TestConformance(WorkspaceBackendSuite):
    @pytest.fixture
    def backend(self, make: Make) -> WorkspaceBackend:
        return make()

    @pytest.fixture
    def fresh_backend(self, make: Make) -> Callable[[], WorkspaceBackend]:
        return make

    @pytest.fixture
    def attach_backend(self, make: Make) -> Callable[[WorkspaceRef], WorkspaceBackend]:
        return lambda ref: make(ref=ref)

    @pytest.fixture
    def destroy_environment(self, async_client: AsyncClient) -> Callable[[WorkspaceBackend], Awaitable[None]]:
        return lambda backend: destroy(async_client, backend.ref)


# Skipped above: test_native_realpath_…, because realpath is left to the framework, which asks the shell for it
# (test_realpath_and_entries_follow_symlinks).


async def test_building_it_does_nothing_and_a_server_that_is_away_is_no_dead_workspace() -> None:
    with Client(f"http://127.0.0.1:{free_port()}") as client:
        backend = SandlotWorkspaceBackend(client)
        for _ in range(2):  # and it is tried again
            with pytest.raises(Unavailable):
                await backend.working_dir()
        assert backend.ref is None


async def test_the_ref_of_another_provider_is_refused() -> None:
    with pytest.raises(ValueError, match="'local'"):
        SandlotWorkspaceBackend(ref=WorkspaceRef(provider="local", id="/home"))


async def test_a_create_whose_caller_is_cancelled_is_remembered(make: Make) -> None:
    backend = make()
    first = asyncio.create_task(backend.run(["true"]))
    await asyncio.sleep(0)  # it has asked for a sandbox, and cannot have one yet
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first

    async def known() -> bool:
        return backend.ref is not None

    await eventually(known, 30, lambda: "no ref")
    ref = backend.ref
    await backend.write_bytes("/tmp/file", b"x")
    assert backend.ref == ref


async def test_a_thread_has_one_sandbox_whoever_builds_the_backend(make: Make, thread: str) -> None:
    one, other = make(thread=thread), make(thread=thread)
    await asyncio.gather(one.working_dir(), other.working_dir())
    assert one.ref is not None
    assert one.ref == other.ref


def test_one_client_serves_several_event_loops(client: Client, thread: str) -> None:
    backend = SandlotWorkspaceBackend(client, thread=thread)
    asyncio.run(backend.write_bytes("/workspace/file", b"from the first loop"))
    assert asyncio.run(backend.read_bytes("/workspace/file")) == b"from the first loop"


async def test_a_lost_sandbox_is_reported_and_not_replaced(
    make: Make, async_client: AsyncClient, agent_server: ServerProcess
) -> None:
    backend = make()
    folder = await backend.working_dir()
    assert backend.ref is not None
    session = await async_client.get(backend.ref.id)
    agent_server.docker("kill", agent_server.container_of(session))
    for dead in (backend, backend, make(ref=backend.ref)):
        with pytest.raises(WorkspaceUnavailableError) as caught:
            await dead.exists(folder)
        assert isinstance(caught.value.__cause__, SandboxLost)
        assert caught.value.__cause__.details["loss"]
    assert (await session.refresh()).generation == session.info.generation


async def test_a_timeout_has_the_output_so_far(make: Make) -> None:
    with pytest.raises(WorkspaceTimeoutError) as caught:
        await make().run("echo early; echo late >&2; sleep 60", shell=True, timeout=3)
    assert (caught.value.stdout, caught.value.stderr) == ("early\n", "late\n")


async def test_too_much_output_is_an_error_with_its_beginning(make: Make) -> None:
    with pytest.raises(WorkspaceOutputLimitError) as caught:
        await make().run(["sh", "-c", "yes | head -c 20000000"])
    assert caught.value.stdout.startswith("y\ny\n")
    assert len(caught.value.stdout) < caught.value.limit


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
async def test_an_impossible_timeout_is_a_value_error(make: Make, timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout"):
        await make().run(["true"], timeout=timeout)


async def test_the_working_directory_is_not_removed_under_another_name(make: Make) -> None:
    backend = make()
    folder = await backend.working_dir()
    await backend.write_bytes(f"{folder}/kept", b"x")
    await backend.run(["ln", "-s", "/", f"{folder}/root"])
    for path in (f"{folder}/root{folder}", f"{folder}/root/sandbox"):
        with pytest.raises(ValueError, match="working directory"):
            await backend.remove(path)
    assert await backend.exists(f"{folder}/kept")


# --- an agent -----------------------------------------------------------------------------------


def scripted(commands: list[str]) -> FunctionModel:
    """A model that runs one command after the other and then says what the last one printed."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if commands:
            return ModelResponse([ToolCallPart("execute", {"command": commands.pop(0)})])
        returned = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
        return ModelResponse([TextPart(str(returned[-1].content))])

    return FunctionModel(answer)


def agent_with(client: Client) -> Agent[None, str]:
    agent = Agent(capabilities=[SandlotWorkspace(client)])

    @agent.tool
    async def execute(ctx: RunContext[None], command: str) -> str:
        result = await ctx.workspace.run(command, shell=True, timeout=30)
        return f"{result.exit_code}: {result.stdout}{result.stderr}"

    return agent


async def test_an_agent_works_in_its_sandbox_and_the_conversation_goes_on_in_it(client: Client) -> None:
    commands = ["echo kept > note", "cat note; exit 3"]
    first = await agent_with(client).run("go", model=scripted(commands))
    assert first.output == "3: kept\n"
    ref = first.workspace.ref
    assert ref is not None

    # Another agent object, as another process has it: the history alone names the sandbox.
    history = first.all_messages()
    second = await agent_with(client).run("on", model=scripted(["cat note"]), message_history=history)
    assert second.output == "0: kept\n"
    assert second.workspace.ref == ref

    await asyncio.to_thread(client.get(ref.id).delete)
    with pytest.raises(WorkspaceUnavailableError, match="workspace='new'"):
        await agent_with(client).run("on", model=scripted(["cat note"]), message_history=history)


async def test_a_conversation_of_its_own_has_a_sandbox_of_its_own(client: Client) -> None:
    agent = agent_with(client)
    runs = [await agent.run("go", model=scripted(["ls | wc -l; touch file"])) for _ in range(2)]
    assert [run.output for run in runs] == ["0: 0\n", "0: 0\n"]
    refs = {run.workspace.ref for run in runs}
    assert len(refs) == 2
    for ref in refs:
        await asyncio.to_thread(client.get(ref.id).delete)


async def test_an_agent_leaves_the_refs_of_others_alone(client: Client) -> None:
    agent = agent_with(client)
    with pytest.raises(UserError, match="elsewhere"):
        await agent.run("go", model=scripted(["ls"]), workspace=WorkspaceRef(provider="elsewhere", id="1"))

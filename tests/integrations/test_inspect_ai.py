"""Inspect's own checks of sandbox environments, and evaluations that run in one."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from inspect_ai import Task, eval_async
from inspect_ai import eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import Score, Scorer, Target, accuracy, scorer
from inspect_ai.solver import Generate, Solver, TaskState, generate, solver, use_tools
from inspect_ai.tool import bash
from inspect_ai.tool._sandbox_tools_utils.sandbox import SandboxInjectionError
from inspect_ai.util import (
    ExecResult,
    ExecStdout,
    OutputLimitExceededError,
    SandboxEnvironmentSpec,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandbox,
)
from inspect_ai.util._sandbox.limits import override_max_exec_output_size
from inspect_ai.util._sandbox.self_check import *  # noqa: F403  the checks: pytest finds them here

from sandlot import Client
from sandlot.domain.errors import SandboxLost, SessionEnded
from sandlot.integrations.inspect_ai import TASK_METADATA_KEY, SandlotConfig, SandlotSandboxEnvironment
from sandlot.testing.eventually import eventually
from tests.faults.rig import ServerProcess

pytestmark = [
    pytest.mark.docker,
    # Inspect leaves its own event streams to the garbage collector.
    pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning"),
]

CANNOT = {
    "test_exec_as_user": "it makes a user as root, and nothing in a sandbox can be root",
}


@pytest.fixture(autouse=True)
def server_url(agent_server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SANDLOT_URL", agent_server.url)
    yield
    gc.collect()  # here, and not in a test to which the warnings of these are news


@pytest.fixture
async def sandbox_env(request: pytest.FixtureRequest) -> AsyncIterator[SandlotSandboxEnvironment]:
    if (why := CANNOT.get(request.node.originalname)) is not None:
        request.node.add_marker(pytest.mark.xfail(reason=why, strict=True))
    environments = await SandlotSandboxEnvironment.sample_init("self_check", None, {})
    yield environments["default"]
    await SandlotSandboxEnvironment.sample_cleanup("self_check", None, environments, False)


# --- beyond the checks ----------------------------------------------------------------------------


async def test_each_channel_has_the_limit_for_itself(sandbox_env: SandlotSandboxEnvironment) -> None:
    command = ["sh", "-c", "head -c 1000 /dev/zero; head -c 1000 /dev/zero >&2"]
    with override_max_exec_output_size(1000):
        result = await sandbox_env.exec(command)
        assert (len(result.stdout), len(result.stderr)) == (1000, 1000)
    with override_max_exec_output_size(999), pytest.raises(OutputLimitExceededError) as caught:
        await sandbox_env.exec(command)
    assert caught.value.truncated_output == "\0" * 999


async def test_a_limit_above_what_the_server_keeps_is_kept_to(sandbox_env: SandlotSandboxEnvironment) -> None:
    with override_max_exec_output_size(32 << 20):
        result = await sandbox_env.exec(["head", "-c", str(20 << 20), "/dev/zero"])
    assert len(result.stdout) == 20 << 20


async def test_a_command_that_writes_without_end_is_ended(sandbox_env: SandlotSandboxEnvironment) -> None:
    with override_max_exec_output_size(100_000), pytest.raises(OutputLimitExceededError):
        await sandbox_env.exec(["yes"])
    await ended(sandbox_env, "yes")


async def test_a_cancelled_command_is_ended(sandbox_env: SandlotSandboxEnvironment) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(sandbox_env.exec, ["sleep", "1234"])

        async def runs() -> bool:
            return (await processes(sandbox_env, "sleep 1234")).returncode == 0

        await eventually(runs, 30, "it does not run")
        group.cancel_scope.cancel()
    await ended(sandbox_env, "sleep 1234")


async def processes(environment: SandlotSandboxEnvironment, command: str) -> ExecResult[str]:
    return await environment.exec(["pgrep", "-x", "-f", command])


async def ended(environment: SandlotSandboxEnvironment, command: str) -> None:
    async def gone() -> bool:
        return (await processes(environment, command)).returncode == 1

    await eventually(gone, 30, f"{command} still runs")


async def test_a_timeout_has_the_output_so_far(sandbox_env: SandlotSandboxEnvironment) -> None:
    with pytest.raises(TimeoutError) as caught:
        await sandbox_env.exec(["sh", "-c", "echo early; sleep 60"], timeout=3)
    assert caught.value.truncated_output == "early\n"


async def test_a_folder_that_is_not_there_and_an_impossible_timeout(
    sandbox_env: SandlotSandboxEnvironment,
) -> None:
    with pytest.raises(FileNotFoundError, match="/workspace/nowhere"):
        await sandbox_env.exec(["ls"], cwd="nowhere")
    with pytest.raises(ValueError, match="timeout"):
        await sandbox_env.exec(["ls"], cwd="/tmp", timeout=10_000_000)


async def test_the_sandboxs_own_user_is_the_only_one(sandbox_env: SandlotSandboxEnvironment) -> None:
    name, number = (await sandbox_env.exec(["sh", "-c", "id -un; id -u"])).stdout.split()
    for user in (name, number):
        assert (await sandbox_env.exec(["id", "-u"], user=user)).stdout == f"{number}\n"
    with pytest.raises(SandboxUserUnsupportedError, match="'root'"):
        await sandbox_env.exec(["id"], user="root")


@pytest.mark.xfail(
    reason="Inspect puts them into /var/tmp and nowhere else, and a sandbox's root is read-only",
    raises=SandboxInjectionError,
    strict=True,
)
async def test_inspects_own_tools_run_in_the_sandbox(sandbox_env: SandlotSandboxEnvironment) -> None:
    """They are a server of Inspect's, put into the sandbox: it outlives the command that starts it."""
    result = await sandbox_env.exec_remote(["sh", "-c", "echo out; echo err >&2; exit 4"], stream=False)
    assert (result.returncode, result.stdout, result.stderr) == (4, "out\n", "err\n")
    process = await sandbox_env.exec_remote(["sh", "-c", "echo one; sleep 0.3; echo two"])
    events = [event async for event in process]
    assert "".join(event.data for event in events if isinstance(event, ExecStdout)) == "one\ntwo\n"


async def test_a_lost_sandbox_is_no_result(
    sandbox_env: SandlotSandboxEnvironment, agent_server: ServerProcess
) -> None:
    agent_server.docker("kill", agent_server.container_of(sandbox_env.session))
    for operation in (
        sandbox_env.exec(["true"]),
        sandbox_env.read_file("x"),
        sandbox_env.write_file("x", ""),
    ):
        with pytest.raises(SandboxUnavailableError, match="sandbox_lost") as caught:
            await operation
        assert isinstance(caught.value.__cause__, SandboxLost)
    with pytest.raises(ConnectionError):
        await sandbox_env.connection()


async def test_the_command_to_connect_reaches_the_session(
    sandbox_env: SandlotSandboxEnvironment, agent_server: ServerProcess
) -> None:
    await sandbox_env.write_file("note", "here")
    connection = await sandbox_env.connection()
    words = connection.command.split()
    assert words[0] == "sandlot"
    ran = await asyncio.to_thread(
        subprocess.run,
        ["script", "-qec", f"{sys.executable} -m {connection.command}", "/dev/null"],
        input=b"cat note; exit\n",
        capture_output=True,
        timeout=90,
    )
    assert b"here" in ran.stdout


async def test_a_sample_that_is_cancelled_while_it_begins_leaves_nothing(client: Client) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await SandlotSandboxEnvironment.sample_init("cancelled-begin", None, {})
    assert scope.cancelled_caught
    assert not await asyncio.to_thread(sessions_of, client, "cancelled-begin")


async def test_no_server_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDLOT_URL", "http://127.0.0.1:9")
    with pytest.raises(RuntimeError, match="Cannot create a sandbox for the sample"):
        await SandlotSandboxEnvironment.sample_init("task", None, {})


async def test_cleanup_from_the_command_line_takes_inspects_sessions_alone(
    client: Client, thread: str
) -> None:
    other = await asyncio.to_thread(client.thread, thread)
    made = [await SandlotSandboxEnvironment.sample_init("forgotten", None, {}) for _ in range(2)]
    ids = [environments["default"].session.id for environments in made]
    await SandlotSandboxEnvironment.cli_cleanup(ids[0])
    with pytest.raises(SessionEnded):
        await asyncio.to_thread(client.get, ids[0])
    await SandlotSandboxEnvironment.cli_cleanup(None)
    assert not await asyncio.to_thread(sessions_of, client, "forgotten")
    assert (await asyncio.to_thread(client.get, other.id)).state == "active"
    for environments in made:
        await SandlotSandboxEnvironment.sample_cleanup("forgotten", None, environments, True)


def sessions_of(client: Client, task: str) -> list[str]:
    return [
        session.id for session in client.sessions() if session.info.metadata.get(TASK_METADATA_KEY) == task
    ]


# --- evaluations ------------------------------------------------------------------------------------


def run(task: Task, logs: Path, **options: Any) -> EvalLog:
    [log] = evaluate(task, model="mockllm/model", log_dir=str(logs), display="none", **options)
    return log


@solver
def runs(command: str) -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        state.output.completion = (await sandbox().exec(["sh", "-c", command])).stdout
        return state

    return solve


@scorer(metrics=[accuracy()])
def file_says() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        return Score(value=float(await sandbox().read_file("answer") == target.text))

    return score


def test_an_evaluation_has_a_sandbox_for_each_sample(tmp_path: Path, client: Client) -> None:
    samples = [
        Sample("q", target=f"{word}\nset up\n", files={"question": f"{word}\n"}, setup="echo set up > setup")
        for word in ("one", "two")
    ]
    task = Task(
        samples,
        solver=runs("cat question setup | tee answer; ls | sort | tr '\\n' ' '"),
        scorer=file_says(),
        sandbox="sandlot",
        name="each-sample",
    )
    log = run(task, tmp_path, epochs=2)
    assert log.status == "success", log.error
    assert log.results is not None
    assert log.results.scores[0].metrics["accuracy"].value == 1.0
    assert log.samples is not None
    assert len(log.samples) == 4
    assert all(sample.output.completion.endswith("answer question setup ") for sample in log.samples), (
        "a sample met the files of another"
    )
    assert not sessions_of(client, "each-sample")


@pytest.mark.parametrize(
    "spec",
    [
        ("sandlot", "slim"),
        SandboxEnvironmentSpec("sandlot", SandlotConfig(environment="slim", env={"GREETING": "hello"})),
    ],
)
def test_the_environment_is_the_tasks_to_choose(tmp_path: Path, spec: Any) -> None:
    task = Task([Sample("q")], solver=runs("echo $GREETING; command -v git"), sandbox=spec, name="chosen")
    log = run(task, tmp_path)
    assert log.status == "success", log.error
    assert log.samples is not None
    wanted = "\n" if isinstance(spec, tuple) else "hello\n"
    assert log.samples[0].output.completion == wanted


def test_a_models_tools_work_in_the_sandbox(tmp_path: Path) -> None:
    command = {"command": "echo $((6 * 7)) > answer; cat answer"}
    outputs = [
        ModelOutput.for_tool_call("mockllm/model", "bash", command),
        ModelOutput.from_content("mockllm/model", "done"),
    ]
    for output in outputs:
        output.usage = ModelUsage()  # else tokens are counted, with a table that is downloaded
    model = get_model("mockllm/model", custom_outputs=outputs)
    task = Task(
        [Sample("q", target="42\n")],
        solver=[use_tools(bash(timeout=30)), generate()],
        scorer=file_says(),
        sandbox="sandlot",
        name="tools",
    )
    [log] = evaluate(task, model=model, log_dir=str(tmp_path), display="none")
    assert log.status == "success", log.error
    assert log.samples is not None
    assert [message.text for message in log.samples[0].messages if message.role == "tool"] == ["42\n"]
    assert log.results is not None
    assert log.results.scores[0].metrics["accuracy"].value == 1.0


def test_a_solver_that_fails_leaves_no_sandbox(tmp_path: Path, client: Client) -> None:
    task = Task([Sample("q")], solver=fails(), sandbox="sandlot", name="failing")
    log = run(task, tmp_path)
    assert log.status == "error"
    assert log.error is not None
    assert "on purpose" in log.error.message
    assert not sessions_of(client, "failing")


@solver
def fails() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        await sandbox().exec(["true"])
        raise ValueError("on purpose")

    return solve


async def test_an_evaluation_that_is_cancelled_leaves_no_sandbox(tmp_path: Path, client: Client) -> None:
    task = Task([Sample("q")], solver=runs("sleep 600"), sandbox="sandlot", name="cancelled")
    evaluation = asyncio.create_task(eval_async(task, model="mockllm/model", log_dir=str(tmp_path)))

    async def begun() -> bool:
        return bool(await asyncio.to_thread(sessions_of, client, "cancelled"))

    await eventually(begun, 60, "no sandbox")
    evaluation.cancel()
    await asyncio.wait({evaluation}, timeout=60)
    assert evaluation.done()

    async def gone() -> bool:
        return not await begun()

    await eventually(gone, 30, "its sandbox stays")

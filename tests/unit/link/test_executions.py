"""Execs: events, results, stdin, and a run across broken links."""

from __future__ import annotations

import asyncio
import math
import tracemalloc

import pytest

from sandlot.domain.errors import (
    Busy,
    Conflict,
    InvalidRequest,
    LinkInterrupted,
    NotFound,
    SandboxLost,
    SandboxQuarantined,
    SandlotError,
    Unsupported,
)
from sandlot.domain.execution import (
    Channel,
    ExecRequest,
    Exited,
    Output,
    PtySize,
    ResultFold,
    Started,
    Verdict,
)
from sandlot.providers.link import executions
from sandlot.providers.link.executions import Run, start_request
from sandlot.wire.frames import Kind, encode_credit

STARTED = {"event": "started", "pid": 7, "existing": False}
AGAIN = {**STARTED, "existing": True}


def test_request_carries_what_was_asked() -> None:
    request = ExecRequest(
        command="ls",
        exec_id="e1",
        cwd="/tmp",
        env={"A": "1"},
        timeout_s=1.0001,
        output_limit=None,
        shell="main",
    )
    assert start_request(request, 5) == {
        "op": "exec.start",
        "exec_id": "e1",
        "command": "ls",
        "cwd": "/tmp",
        "env": {"A": "1"},
        "stdin": False,
        "timeout_ms": math.ceil(1000.1),
        "output_limit": 0,
        "on_limit": "truncate",
        "shell": "main",
        "offset": 5,
    }
    body = start_request(ExecRequest(argv=("a", "b"), pty=PtySize(3, 4)))
    assert (body["argv"], body["pty"]) == (["a", "b"], {"rows": 3, "cols": 4})
    assert "merge" not in body
    assert start_request(ExecRequest(command="ls", merge_output=True))["merge"] is True


async def test_an_older_agent_is_not_asked_to_merge(scene, exit_event) -> None:
    """It would pass over the word, and the order would be luck."""
    peer = await (await scene.dial()).shake_hands(protocol=[1, 0])
    await scene.link.wait_ready()
    request = ExecRequest(command="echo hi", merge_output=True)
    for call in (scene.agent.run, scene.agent.start):
        with pytest.raises(Unsupported, match="merge") as refused:
            await call(request)
        assert not refused.value.may_have_executed
    running = asyncio.create_task(scene.agent.run(ExecRequest(command="echo hi")))
    number, asked = await peer.request()
    assert asked["command"] == "echo hi"
    peer.message(number, STARTED)
    peer.answer(number, exit_event)
    assert (await running).exit_code == 0


async def test_run_folds_the_events(scene, exit_event) -> None:
    peer = await scene.core()
    running = asyncio.create_task(scene.agent.run(ExecRequest(command="echo hi")))
    number, request = await peer.request()
    assert request["command"] == "echo hi"
    assert (await peer.frame()).kind is Kind.END
    peer.message(number, STARTED)
    peer.data(number, b"hi\n", channel=1)
    peer.data(number, b"oops", channel=2, offset=3)
    peer.answer(number, {**exit_event, "code": 3})
    result = await running
    assert (result.stdout, result.stderr, result.output) == (b"hi\n", b"oops", b"hi\noops")
    assert (result.exit_code, result.verdict, result.gaps) == (3, Verdict.NONZERO, 0)
    assert (await scene.link.core())._streams == {}


async def test_start_then_events(scene, exit_event) -> None:
    peer = await scene.core()
    starting = asyncio.create_task(scene.agent.start(ExecRequest(command="x", exec_id="e1")))
    number, _ = await peer.request()
    peer.message(number, STARTED)
    execution = await starting
    assert execution.exec_id == "e1"
    peer.data(number, b"a", channel=1)
    peer.answer(number, exit_event)
    events = [event async for event in execution.events()]
    assert events[:2] == [Started(7, False), Output(Channel.STDOUT, 0, b"a")]
    assert isinstance(events[2], Exited)
    with pytest.raises(RuntimeError):
        await execution.result()


async def test_attach_from_an_offset(scene, exit_event) -> None:
    peer = await scene.core()
    attaching = asyncio.create_task(scene.agent.attach("e1", offset=100))
    number, request = await peer.request()
    assert request == {"op": "exec.attach", "exec_id": "e1", "offset": 100}
    peer.message(number, AGAIN)
    peer.data(number, b"z", channel=1, offset=100)
    peer.answer(number, exit_event)
    result = await (await attaching).result()
    assert (result.stdout, result.gaps) == (b"z", 0)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("bad_request", InvalidRequest),
        ("unsupported", Unsupported),
        ("busy", Busy),
        ("not_found", NotFound),
        ("conflict", Conflict),
        ("resource_exhausted", Busy),
        ("internal", SandlotError),
        ("of a newer agent", SandlotError),
    ],
)
async def test_refusals_are_told_by_start(scene, code, error) -> None:
    peer = await scene.core()
    starting = asyncio.create_task(scene.agent.start(ExecRequest(command="x")))
    number, _ = await peer.request()
    peer.reset(number, code)
    with pytest.raises(SandlotError) as caught:
        await starting
    assert type(caught.value) is error


async def test_abandoned_iteration_detaches(scene) -> None:
    peer = await scene.core()
    starting = asyncio.create_task(scene.agent.start(ExecRequest(command="x")))
    number, _ = await peer.request()
    peer.message(number, STARTED)
    events = (await starting).events()
    assert isinstance(await anext(events), Started)
    await events.aclose()
    assert (await peer.until(Kind.RESET)).stream == number
    assert (await scene.link.core())._streams == {}


async def test_cancelled_start_and_run_detach(scene) -> None:
    peer = await scene.core()
    for call in (scene.agent.start(ExecRequest(command="x")), scene.agent.run(ExecRequest(command="x"))):
        task = asyncio.create_task(call)
        number, _ = await peer.request()
        task.cancel()
        assert (await peer.until(Kind.RESET)).stream == number
    assert (await scene.link.core())._streams == {}


async def test_stdin_is_written_and_closed(scene, exit_event) -> None:
    peer = await scene.core()
    starting = asyncio.create_task(scene.agent.start(ExecRequest(command="cat", stdin=True)))
    number, _ = await peer.request()
    peer.message(number, STARTED)
    execution = await starting
    await execution.write_stdin(b"one")
    await execution.write_stdin(b"two")
    await execution.close_stdin()
    frames = [await peer.frame() for _ in range(3)]
    assert [(frame.kind, frame.offset, frame.body) for frame in frames] == [
        (Kind.DATA, 0, b"one"),
        (Kind.DATA, 3, b"two"),
        (Kind.END, 0, b""),
    ]
    peer.answer(number, exit_event)
    await execution.result()


async def test_stdin_of_an_exec_that_ended_is_closed(scene, exit_event) -> None:
    peer = await scene.core()
    starting = asyncio.create_task(scene.agent.start(ExecRequest(command="true", stdin=True)))
    number, _ = await peer.request()
    peer.message(number, STARTED)
    execution = await starting
    writing = asyncio.create_task(execution.write_stdin(bytes(10**6)))  # more than credit: it waits
    await peer.until(Kind.DATA)
    peer.answer(number, exit_event)
    with pytest.raises(Conflict):
        await writing
    assert (await execution.result()).exit_code == 0


@pytest.mark.parametrize("size", [0, 5, 1_000_000])
async def test_run_feeds_stdin(scene, exit_event, size) -> None:
    peer = await scene.core()
    stdin = bytes(size)
    running = asyncio.create_task(scene.agent.run(ExecRequest(command="wc -c"), stdin))
    number, request = await peer.request()
    assert request["stdin"] is True
    peer.message(number, STARTED)
    peer.raw(encode_credit(number, 2 * size + 100))
    got = b""
    while (frame := await peer.frame()).kind is Kind.DATA:
        got += frame.body
    assert frame.kind is Kind.END
    assert got == stdin
    peer.answer(number, exit_event)
    await running


async def test_run_whose_command_does_not_read_stdin(scene, exit_event) -> None:
    peer = await scene.core()
    running = asyncio.create_task(scene.agent.run(ExecRequest(command="true"), bytes(10**6)))
    number, _ = await peer.request()
    peer.message(number, STARTED)
    peer.answer(number, exit_event)
    assert (await running).exit_code == 0


# across broken links


async def test_run_goes_on_at_the_next_offset(scene, exit_event) -> None:
    peer = await scene.core()
    running = asyncio.create_task(scene.agent.run(ExecRequest(command="x", exec_id="e1")))
    number, _ = await peer.request()
    peer.message(number, STARTED)
    peer.data(number, b"first ", channel=1)
    await peer.drain()
    await asyncio.sleep(0.01)
    peer.close()
    peer = await scene.core()
    number, request = await peer.request()
    assert request == {"op": "exec.attach", "exec_id": "e1", "offset": 6}
    peer.message(number, AGAIN)
    peer.data(number, b"second", channel=1, offset=6)
    peer.answer(number, exit_event)
    result = await running
    assert (result.output, result.gaps) == (b"first second", 0)


async def test_run_counts_a_gap_after_a_long_break(scene, exit_event) -> None:
    peer = await scene.core()
    running = asyncio.create_task(scene.agent.run(ExecRequest(command="x", output_limit=None)))
    number, _ = await peer.request()
    peer.message(number, STARTED)
    peer.close()
    peer = await scene.core()
    number, _ = await peer.request()
    peer.message(number, AGAIN)
    peer.data(number, b"late", channel=1, offset=5000)
    peer.answer(number, exit_event)
    result = await running
    assert (result.gaps, result.truncated) == (1, True)


@pytest.mark.parametrize("stdin", [None, b"once"])
async def test_unconfirmed_start_is_asked_again_under_its_id(scene, exit_event, stdin) -> None:
    peer = await scene.core()
    running = asyncio.create_task(scene.agent.run(ExecRequest(command="x", exec_id="e1"), stdin))
    await peer.request()
    peer.close()
    peer = await scene.core()
    number, request = await peer.request()
    assert request["op"] == "exec.attach"
    peer.reset(number, "not_found")
    number, request = await peer.request()
    assert (request["op"], request["exec_id"]) == ("exec.start", "e1")
    if stdin:
        assert (await peer.until(Kind.DATA)).body == stdin
    peer.message(number, STARTED)
    peer.answer(number, exit_event)
    assert (await running).exit_code == 0


async def test_a_start_that_is_confirmed_by_attaching_is_told_once_as_a_start(scene, exit_event) -> None:
    """The agent says that the exec exists, but it is the one that this run has started."""
    peer = await scene.core()
    starts: list[Started] = []
    request = ExecRequest(command="x", exec_id="e1")
    running = asyncio.create_task(scene.agent.run(request, on_start=starts.append))
    await peer.request()
    for _ in range(2):  # the second break comes after the confirmation
        peer.close()
        peer = await scene.core()
        number, asked = await peer.request()
        assert asked["op"] == "exec.attach"
        peer.message(number, AGAIN)
        while not starts:
            await asyncio.sleep(0)
    peer.answer(number, exit_event)
    await running
    assert starts == [Started(7, existing=False)]


async def test_confirmed_exec_that_is_unknown_is_lost(scene) -> None:
    peer = await scene.core()
    running = asyncio.create_task(scene.agent.run(ExecRequest(command="x")))
    number, _ = await peer.request()
    peer.message(number, STARTED)
    await peer.drain()
    await asyncio.sleep(0.01)
    peer.close()
    peer = await scene.core()
    number, _ = await peer.request()
    peer.reset(number, "not_found")
    with pytest.raises(SandboxLost):
        await running


async def test_stdin_is_never_sent_twice(scene) -> None:
    """What the exec has read of it is not known: the caller has to decide."""
    peer = await scene.core()
    running = asyncio.create_task(scene.agent.run(ExecRequest(command="cat"), b"data"))
    await peer.request()
    peer.close()
    peer = await scene.core()
    number, request = await peer.request()
    assert request["op"] == "exec.attach"
    peer.message(number, AGAIN)
    with pytest.raises(LinkInterrupted) as caught:
        await running
    assert caught.value.may_have_executed
    assert (await peer.frame()).kind is Kind.RESET, "neither DATA nor END was sent before"


async def test_nobody_redials(scene) -> None:
    peer = await scene.core()
    running = asyncio.create_task(Run(scene.link, ExecRequest(command="x"), None, 0.02).result())
    await peer.request()
    peer.close()
    with pytest.raises(LinkInterrupted) as caught:
        await running
    assert caught.value.may_have_executed


async def test_nobody_ever_dialled(scene) -> None:
    with pytest.raises(LinkInterrupted) as caught:
        await Run(scene.link, ExecRequest(command="x"), None, 0.01).result()
    assert not caught.value.may_have_executed


async def test_lost_while_it_ran(scene) -> None:
    peer = await scene.core()
    running = asyncio.create_task(scene.agent.run(ExecRequest(command="x")))
    await peer.request()
    peer.close()
    await asyncio.sleep(0.01)  # the run waits for a redial that does not come
    scene.link.mark_lost("gone")
    with pytest.raises(SandboxLost) as caught:
        await running
    assert caught.value.may_have_executed


async def test_lost_before_it_was_asked(scene) -> None:
    scene.link.mark_lost("gone")
    for asking in (scene.agent.run(ExecRequest(command="x")), scene.agent.kill("e1"), scene.agent.health()):
        with pytest.raises(SandboxLost) as caught:
            await asking
        assert not caught.value.may_have_executed


async def test_refused_when_attaching_again(scene) -> None:
    """The exec may be running: a refusal to show it does not say that it is not."""
    peer = await scene.core()
    running = asyncio.create_task(scene.agent.run(ExecRequest(command="x")))
    await peer.request()
    peer.close()
    peer = await scene.core()
    number, request = await peer.request()
    assert request["op"] == "exec.attach"
    peer.reset(number, "busy")
    with pytest.raises(Busy) as caught:
        await running
    assert caught.value.may_have_executed


def test_output_in_single_bytes_costs_what_it_weighs() -> None:
    fold = ResultFold("e1")
    tracemalloc.start()
    try:
        for offset in range(200_000):
            fold.add(Output(Channel.STDOUT if offset % 2 else Channel.STDERR, offset, b"x"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


async def test_links_that_break_again_and_again(scene) -> None:
    running = asyncio.create_task(scene.agent.run(ExecRequest(command="x")))
    for _ in range(executions.MAX_BREAKS_WITHOUT_PROGRESS):
        peer = await scene.core()
        await peer.request()
        peer.close()
        await peer.eof()
    with pytest.raises(LinkInterrupted):
        await running


async def test_wrong_event_quarantines(scene) -> None:
    peer = await scene.core()
    running = asyncio.create_task(scene.agent.run(ExecRequest(command="x")))
    number, _ = await peer.request()
    peer.data(number, b"before it started", channel=1)
    with pytest.raises(SandboxQuarantined):
        await running


async def test_execution_whose_link_breaks(scene) -> None:
    peer = await scene.core()
    starting = asyncio.create_task(scene.agent.start(ExecRequest(command="x", stdin=True)))
    number, _ = await peer.request()
    peer.message(number, STARTED)
    execution = await starting
    peer.close()
    with pytest.raises(LinkInterrupted):
        await execution.result()
    with pytest.raises(LinkInterrupted):
        await execution.write_stdin(b"x")


async def test_small_requests(scene) -> None:
    peer = await scene.core()

    async def serve() -> None:
        answers = {
            "bind": {},
            "exec.signal": {"signalled": 3},
            "exec.resize": {},
            "exec.forget": {},
            "shell.close": {},
            "info": {
                "agent": "0.1.0",
                "uptime_ms": 5,
                "execs_running": 1,
                "processes": 2,
                "memory": {"used_bytes": 3, "limit_bytes": 4, "oom_kills": 0},
            },
            "shell.list": {"shells": [{"name": "main", "pid": 9, "cwd": "/", "busy": False}]},
        }
        while True:
            number, request = await peer.request()
            if request["op"] == "exec.list":
                peer.message(number, {"execs": [{"exec_id": "e1", "state": "running", "shell": ""}]})
                peer.answer(number, {"execs": [{"exec_id": "e2", "state": "exited", "shell": "main"}]})
            else:
                peer.answer(number, answers[request["op"]])

    scene.script(serve())
    agent = scene.agent
    await agent.bind(env={"A": "1"}, max_execs=4)
    assert await agent.signal("e1", 15) == 3
    await agent.resize("e1", rows=2, cols=3)
    await agent.forget("e1")
    await agent.close_shell("main")
    assert (await agent.health()).memory_limit_bytes == 4
    assert [shell.name for shell in await agent.list_shells()] == ["main"]
    execs = await agent.list_execs()
    assert [(item.exec_id, item.running, item.shell) for item in execs] == [
        ("e1", True, None),
        ("e2", False, "main"),
    ]
    for wrong in (agent.signal("e1", 0), agent.kill("a b"), agent.close_shell(""), agent.attach("/")):
        with pytest.raises(InvalidRequest):
            await wrong


async def test_command_that_is_not_text_is_refused_and_not_altered(scene) -> None:
    await scene.core()
    with pytest.raises(InvalidRequest):
        await scene.agent.run(ExecRequest(command="echo \udce9"))


async def test_agent_that_does_not_answer(scene, monkeypatch) -> None:
    monkeypatch.setattr("sandlot.providers.link.calls.ANSWER_TIMEOUT_S", 0.01)
    await scene.core()
    with pytest.raises(LinkInterrupted):
        await scene.agent.health()
    assert (await scene.link.core())._streams == {}

"""Cells of a real worker, on runc and gVisor: values, output, errors, state, and what ends them."""

from __future__ import annotations

import asyncio
import time

import pytest

from sandlot.domain.code.contexts import Cell, CreateContext, Language
from sandlot.domain.code.events import CellCount, CellData, CellText, EventLines
from sandlot.domain.errors import Conflict, InvalidRequest, NotFound, Unsupported
from sandlot.domain.execution import ExecRequest, Exited, Output, Verdict
from sandlot.domain.session import CreateSession
from sandlot.wiring import LocalWorker
from sandlot.worker.contexts.program import BRIDGE_EXEC_ID
from tests.code.conftest import new_session, run, value

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]


async def test_a_value_output_and_the_count(service: LocalWorker, shared: str) -> None:
    ran = await run(service, shared, "import sys\nprint('out')\nprint('err', file=sys.stderr)\n6 * 7")
    assert ran.result.exit_code == 0
    assert ran.result.verdict is Verdict.OK
    count, *rest = ran.events
    assert isinstance(count, CellCount)
    assert CellText("stdout", "out\n") in rest
    assert CellText("stderr", "err\n") in rest
    assert [(data.data, data.main) for data in ran.of(CellData)] == [({"text/plain": "42"}, True)]


async def test_an_exception_has_its_traceback(service: LocalWorker, shared: str) -> None:
    ran = await run(service, shared, "def f(x):\n    return 1 / x\nf(0)")
    assert (ran.result.exit_code, ran.result.verdict) == (1, Verdict.NONZERO)
    assert (ran.error.name, ran.error.value) == ("ZeroDivisionError", "division by zero")
    assert "return" in "".join(ran.error.traceback)


async def test_state_is_kept_over_fifty_cells(service: LocalWorker, shared: str) -> None:
    await run(service, shared, "numbers = []")
    for number in range(50):
        await run(service, shared, f"numbers.append({number})")
    assert await value(service, shared, "sum(numbers), len(numbers)") == "(1225, 50)"


async def test_ten_megabytes_of_output_arrive_whole(service: LocalWorker, shared: str) -> None:
    execution = await service.start_exec(
        shared, ExecRequest(cell=Cell("for i in range(10):\n    print('x' * 1_000_000)"), output_limit=None)
    )
    lines, characters, code = EventLines(), 0, None
    async for event in execution.events():
        if isinstance(event, Output):
            characters += sum(len(each.text) for each in lines.feed(event.data) if isinstance(each, CellText))
        elif isinstance(event, Exited):
            code = event.code
    assert (characters, code) == (10 * 1_000_001, 0)


async def test_output_that_nobody_reads_makes_the_kernel_wait(service: LocalWorker, session: str) -> None:
    """The kernel stands still instead of filling the sandbox's memory, and goes on when it is read."""
    code = "for i in range(60):\n    print('x' * 1_000_000, flush=True)\n"
    execution = await service.start_exec(session, ExecRequest(cell=Cell(code), output_limit=None))
    await asyncio.sleep(3)
    state = "ps -eo stat,args | grep [i]pykernel_launcher | cut -c1"
    assert (await service.execute(session, ExecRequest(state))).stdout.decode().strip() == "T"
    total = 0
    async for event in execution.events():
        total += len(event.data) if isinstance(event, Output) else 0
    assert total > 60_000_000
    assert await value(service, session, "i") == "59"


async def test_input_is_refused_and_does_not_hang(service: LocalWorker, shared: str) -> None:
    ran = await run(service, shared, "input('name? ')", timeout_s=20)
    assert ran.error.name == "StdinNotImplementedError"


async def test_help_is_shown(service: LocalWorker, shared: str) -> None:
    assert "Return the number of items" in (await run(service, shared, "len?")).text


async def test_displays_that_change(service: LocalWorker, shared: str) -> None:
    code = (
        "from IPython.display import display, clear_output, HTML\n"
        "h = display(HTML('<b>1</b>'), display_id='d')\nh.update(HTML('<b>2</b>'))\nclear_output(wait=True)"
    )
    first, second = (await run(service, shared, code)).of(CellData)
    assert (first.display_id, first.update, first.data["text/html"]) == ("d", False, "<b>1</b>")
    assert (second.display_id, second.update, second.data["text/html"]) == ("d", True, "<b>2</b>")


async def test_an_endless_loop_is_interrupted_within_a_second(service: LocalWorker, shared: str) -> None:
    await run(service, shared, "kept = 'here'")
    for code in ("while True: pass", "import time\ntime.sleep(600)"):
        execution = await service.start_exec(shared, ExecRequest(cell=Cell(code)))
        await asyncio.sleep(1)
        began = time.monotonic()
        await service.interrupt_context(shared, "python")
        result = await execution.result()
        assert time.monotonic() - began < 1
        assert result.exit_code == 1
        assert b"KeyboardInterrupt" in result.stdout
    assert await value(service, shared, "kept") == "'here'"


@pytest.mark.parametrize(
    ("language", "code", "told"),
    [("python", "import time\ntime.sleep(60)", "KeyboardInterrupt"), ("bash", "sleep 60", "")],
)
async def test_an_interrupt_at_once_is_never_lost(
    service: LocalWorker, shared: str, language: Language, code: str, told: str
) -> None:
    """It may come before the kernel has read the code, or in the middle of its own first lines."""
    await run(service, shared, "true" if language == "bash" else "1", language)
    for pause_ms in (0, 0, 0, *range(10)):
        execution = await service.start_exec(shared, ExecRequest(cell=Cell(code, language)))
        while not any(context.busy for context in await service.list_contexts(shared)):
            pass
        await asyncio.sleep(pause_ms / 1000)
        await service.interrupt_context(shared, language)
        result = await asyncio.wait_for(execution.result(), 20)
        assert (result.exit_code, b"CellRefused" in result.stdout) == (1, False)
        assert told.encode() in result.stdout


async def test_a_program_in_bash_gets_one_interrupt(service: LocalWorker, shared: str) -> None:
    """A second one could end it while it saves its work."""
    program = (
        "import signal, time; got = []; signal.signal(signal.SIGINT, lambda *_: got.append(1)); "
        "print('ready', flush=True); end = time.monotonic() + 60\n"
        "while not got and time.monotonic() < end: time.sleep(0.01)\n"
        "time.sleep(1.5); print('interrupts: %d' % len(got))"
    )
    execution = await service.start_exec(
        shared, ExecRequest(cell=Cell(f"python3 -c '{program.replace(chr(39), chr(34))}'", "bash"))
    )
    output = b""
    async for event in execution.events():
        output += event.data if isinstance(event, Output) else b""
        if b"ready" in output and b"interrupts" not in output:
            await asyncio.sleep(0.3)
            await service.interrupt_context(shared, "bash")
    assert b"interrupts: 1\\n" in output


@pytest.mark.parametrize("how", ["kill", "timeout"])
async def test_a_killed_cell_leaves_the_state(service: LocalWorker, shared: str, how: str) -> None:
    await run(service, shared, "kept = 'still'")
    request = ExecRequest(cell=Cell("while True: pass"), timeout_s=1.5 if how == "timeout" else 60)
    execution = await service.start_exec(shared, request)
    await asyncio.sleep(1)
    if how == "kill":
        assert await service.kill_exec(shared, request.exec_id) > 0
    result = await execution.result()
    assert result.verdict is (Verdict.KILLED if how == "kill" else Verdict.TIMEOUT)
    began = time.monotonic()
    assert await value(service, shared, "kept") == "'still'"
    assert time.monotonic() - began < 1


async def test_cells_of_one_context_run_one_after_another(service: LocalWorker, shared: str) -> None:
    await run(service, shared, "order = []")
    code = "import time\norder.append('a')\ntime.sleep(0.2)\norder.append('b')"
    await asyncio.gather(*(run(service, shared, code) for _ in range(3)))
    assert await value(service, shared, "''.join(order)") == "'ababab'"


async def test_two_contexts_run_at_the_same_time(service: LocalWorker, session: str) -> None:
    other = await service.create_context(session, CreateContext(context_id="other", cwd="/tmp"))
    assert (other.id, other.language, other.cwd) == ("other", Language.PYTHON, "/tmp")
    assert await service.create_context(session, CreateContext(context_id="other", cwd="/tmp")) == other
    await run(service, session, "who = 'python'")
    sleeping = "import time\ntime.sleep(2)\nwho = 'other'"
    began = time.monotonic()
    await asyncio.gather(
        run(service, session, sleeping, "other"), run(service, session, sleeping.replace("other", "x"))
    )
    assert time.monotonic() - began < 3.5
    assert await value(service, session, "import os; who, os.getcwd()", "other") == "('other', '/tmp')"
    assert await value(service, session, "who") == "'x'"
    await service.delete_context(session, "other")
    await service.delete_context(session, "other")
    with pytest.raises(NotFound, match="other"):
        await run(service, session, "1", "other")
    assert [context.id for context in await service.list_contexts(session)] == ["python"]


async def test_variables_of_one_cell_are_restored(service: LocalWorker) -> None:
    async with new_session(service, "kernels", env={"KEPT": "session"}) as session:
        code = "import os\n[os.environ.get(name) for name in ('KEPT', 'NEW')]"
        assert await value(service, session, code) == "['session', None]"
        assert await value(service, session, code, env={"KEPT": "cell", "NEW": "1"}) == "['cell', '1']"
        assert await value(service, session, code) == "['session', None]"
        shell = "echo $KEPT-$NEW"
        assert (await run(service, session, shell, "bash")).text == "session-\n"
        assert (await run(service, session, shell, "bash", env={"NEW": "a 'b'"})).text == "session-a 'b'\n"
        assert (await run(service, session, shell, "bash")).text == "session-\n"


async def test_bash_keeps_its_state(service: LocalWorker, shared: str) -> None:
    await run(service, shared, 'greet() { echo "hello $1"; }\ncd /tmp\nexport X=5', "bash")
    ran = await run(service, shared, "greet you; pwd; echo $X; echo no >&2; false", "bash")
    assert ran.result.exit_code == 1
    assert [event for event in ran.of(CellText) if event.channel == "stderr"] == [CellText("stderr", "no\n")]
    assert "".join(e.text for e in ran.of(CellText) if e.channel == "stdout") == "hello you\n/tmp\n5\n"
    assert (ran.error.name, ran.error.value) == ("ExitStatus", "The last command failed with exit status 1.")
    execution = await service.start_exec(
        shared, ExecRequest(cell=Cell("while :; do sleep 0.1; done", "bash"))
    )
    await asyncio.sleep(1)
    await service.interrupt_context(shared, "bash")
    assert (await execution.result()).exit_code == 1
    assert (await run(service, shared, "echo $X", "bash")).text == "5\n"
    ended = await run(service, shared, "exit 4", "bash")
    assert (ended.error.name, "exit status 4" in ended.error.value) == ("ShellEnded", True)
    assert (await run(service, shared, "echo [$X]", "bash")).text == "[]\n"


async def test_code_of_any_length_and_with_any_character(service: LocalWorker, shared: str) -> None:
    for size in (100, 95_000, 99_000, 1_900_000):
        code = f"text = '{'é' * (size // 2)}'\nlen(text)"
        assert await value(service, shared, code) == str(size // 2)
    assert await value(service, shared, "len('\U0001f600')") == "1"
    assert (await run(service, shared, "# \0", timeout_s=10)).error.name == "CellRefused"
    assert await value(service, shared, "1") == "1"


async def test_a_cells_exec_is_shown_and_never_runs_twice(service: LocalWorker, shared: str) -> None:
    await run(service, shared, "times = 0")
    request = ExecRequest(cell=Cell("times += 1\ntimes"), exec_id="twice-" + shared[-8:])
    first = await service.execute(shared, request)
    assert (await service.execute(shared, request)).stdout == first.stdout
    assert await value(service, shared, "times") == "1"
    execs = {known.exec_id: known for known in await service.list_execs(shared)}
    assert execs[request.exec_id].command == "python: times += 1\ntimes"


async def test_the_kernels_own_exec_belongs_to_no_client(service: LocalWorker, shared: str) -> None:
    await run(service, shared, "1")
    assert BRIDGE_EXEC_ID not in {known.exec_id for known in await service.list_execs(shared)}
    with pytest.raises(InvalidRequest, match="reserved"):
        await service.execute(shared, ExecRequest("true", exec_id=BRIDGE_EXEC_ID))
    for call in (service.attach_exec, service.get_exec, service.kill_exec):
        with pytest.raises(NotFound):
            await call(shared, BRIDGE_EXEC_ID)  # type: ignore[operator]
    with pytest.raises(NotFound):
        await service.signal_exec(shared, BRIDGE_EXEC_ID, 9)


async def test_a_language_or_image_without_a_kernel(service: LocalWorker, shared: str) -> None:
    with pytest.raises(Unsupported, match="no kernel for javascript; it has: python, bash"):
        await run(service, shared, "1", "javascript")
    with pytest.raises(NotFound, match="no context 'mine'"):
        await run(service, shared, "1", "mine")
    with pytest.raises(InvalidRequest, match="does not exist"):
        await service.create_context(shared, CreateContext(cwd="/nowhere"))


async def test_only_so_many_contexts(service: LocalWorker, session: str) -> None:
    """Of the bridge's own bound: kernels would need more memory than the test's sandbox has."""
    await service.create_context(session, CreateContext(context_id="one"))
    with pytest.raises(Conflict, match="another language or folder"):
        await service.create_context(session, CreateContext(Language.BASH, "one"))


async def test_many_first_cells_at_once_start_one_bridge(service: LocalWorker, session: str) -> None:
    ran = await asyncio.gather(*(run(service, session, f"x{i} = {i}") for i in range(6)))
    assert [each.result.exit_code for each in ran] == [0] * 6
    assert await value(service, session, "x0 + x5") == "5"
    listing = "ps -eo args | grep -c '[i]pykernel_launcher'"
    assert (await service.execute(session, ExecRequest(listing))).stdout == b"1\n"


async def test_a_session_with_kernels_hibernates_and_loses_them(service: LocalWorker) -> None:
    session = (await service.create_session(CreateSession(environment="kernels"))).session
    await run(service, session.id, "x = 1; open('kept.txt', 'w').write('kept')")
    hibernated = await service.hibernate_session(session.id)
    assert hibernated.loss is not None
    assert "code contexts and their state" in hibernated.loss.lost
    assert await service.list_contexts(session.id) == []
    assert await value(service, session.id, "open('kept.txt').read()") == "'kept'"
    assert (await run(service, session.id, "x")).error.name == "NameError"
    await service.delete_session(session.id)

"""What a cell reads when its kernel, or the bridge to all kernels, has ended; and what a hostile program can do."""

from __future__ import annotations

import asyncio
import time

import pytest

from sandlot.domain.code.contexts import Cell, Language
from sandlot.domain.errors import NotFound, Unavailable
from sandlot.domain.execution import ExecRequest, Output, Verdict
from sandlot.wiring import LocalWorker
from sandlot.worker.contexts.program import FOLDER, SOCKET
from tests.code.conftest import new_session, run, value

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

# Until their parent has been told: before that, the next cell would still go to a dead one.
KILL_KERNELS = """
kernels=$(pgrep -f '[i]pykernel_launcher') && kill -9 $kernels
for kernel in $kernels; do while [ -e /proc/$kernel ]; do sleep 0.1; done; done
"""
KILL_BRIDGE = "pkill -9 -f 'python3 -I -c'"


@pytest.mark.parametrize("tier", ["kernels", "gvisor-kernels"])
async def test_a_kernel_that_dies_is_reported_and_replaced(service: LocalWorker, tier: str) -> None:
    async with new_session(service, tier) as session:
        await run(service, session, "x = 1")
        ran = await run(service, session, "import os\nos._exit(7)")
        assert (ran.error.name, ran.result.exit_code) == ("KernelDied", 3)
        assert (await run(service, session, "x")).error.name == "NameError"
        (context,) = await service.list_contexts(session)
        assert (context.restarts, context.executions) == (1, 1)


async def test_a_kernel_that_dies_between_cells(service: LocalWorker, session: str) -> None:
    await run(service, session, "x = 1")
    await service.execute(session, ExecRequest(KILL_KERNELS, timeout_s=60))
    ran = await run(service, session, "x = 2")
    assert (ran.error.name, "did not run" in ran.error.value) == ("KernelDied", True)
    assert (await run(service, session, "x")).error.name == "NameError"


async def test_a_kernel_without_memory(service: LocalWorker, session: str) -> None:
    ran = await run(
        service, session, "x = bytearray(4 * 1024**3)\nx[::4096] = b'1' * len(x[::4096])", timeout_s=200
    )
    assert ran.result.verdict is Verdict.OOM
    assert ran.error.name == "KernelDied"
    assert await value(service, session, "1 + 1") == "2"


async def test_a_restart_ends_what_runs(service: LocalWorker, session: str) -> None:
    await run(service, session, "x = 1")
    execution = await service.start_exec(session, ExecRequest(cell=Cell("while True: pass")))
    await asyncio.sleep(0.5)
    (busy,) = await service.list_contexts(session)
    assert busy.busy
    restarted = await service.restart_context(session, "python")
    assert (restarted.restarts, restarted.executions, restarted.language) == (1, 0, Language.PYTHON)
    result = await execution.result()
    assert (result.exit_code, b"KernelRestarted" in result.stdout) == (3, True)
    assert (await run(service, session, "x")).error.name == "NameError"
    with pytest.raises(NotFound):
        await service.restart_context(session, "nothing")


async def test_a_bridge_that_dies_is_told_once(service: LocalWorker, session: str) -> None:
    await run(service, session, "x = 1")
    first = ExecRequest(cell=Cell("'first'"), exec_id="first")
    kept = await service.execute(session, first)
    await service.execute(session, ExecRequest(KILL_BRIDGE))
    await asyncio.sleep(0.5)
    assert (await service.execute(session, first)).stdout == kept.stdout  # its own result, not the loss
    lost = await run(service, session, "x = 2")
    assert (lost.error.name, lost.result.exit_code) == ("KernelDied", 3)
    assert (await run(service, session, "x")).error.name == "NameError"
    await asyncio.sleep(0.5)
    left = await service.execute(session, ExecRequest("ps -eo args | grep -c '[i]pykernel_launcher'"))
    assert left.stdout == b"1\n"


async def test_a_bridge_that_dies_under_a_cell(service: LocalWorker, session: str) -> None:
    execution = await service.start_exec(session, ExecRequest(cell=Cell("print('begun')\nwhile True: pass")))
    await asyncio.sleep(2)
    await service.execute(session, ExecRequest(KILL_BRIDGE))
    result = await execution.result()
    assert (result.exit_code, b"KernelDied" in result.stdout) == (3, True)


async def test_an_emptied_tmp_is_mended(service: LocalWorker, session: str) -> None:
    await run(service, session, "x = 1")
    await service.execute(session, ExecRequest(f"rm {SOCKET}"))
    await asyncio.sleep(1.5)
    assert await value(service, session, "x") == "1"


# It takes the place in one step: the bridge would take one back that it saw empty.
FLOOD = f"""
import os, socket
server = socket.socket(socket.AF_UNIX)
server.bind({SOCKET + ".new"!r})
server.listen()
os.rename({SOCKET + ".new"!r}, {SOCKET!r})
print("listening", flush=True)
while True:
    client, _ = server.accept()
    try:
        request = client.recv(1 << 20)
        answer = open("/workspace/answer", "rb").read()
        if answer:
            client.sendall(answer)
        while not answer or FOREVER:
            client.sendall(b"x" * (1 << 20))
        client.close()
    except OSError:
        pass
"""


@pytest.mark.parametrize(
    ("answer", "forever"),
    [
        (b"not json\n", False),
        (b"[[[[" * 100_000 + b"\n", False),
        (
            b'{"contexts": [{"id": "../..", "language": "python", "cwd": "/", "busy": true}, 7, null]}\n',
            False,
        ),
        (b'{"error": 7, "message": {}}\n', False),
        (b"", True),
    ],
    ids=["no JSON", "deep JSON", "wrong contexts", "wrong error", "endless"],
)
async def test_a_program_in_the_bridges_place_harms_only_its_session(
    service: LocalWorker, session: str, answer: bytes, forever: bool
) -> None:
    await run(service, session, "1")
    program = FLOOD.replace("FOREVER", str(forever))
    await service.files(session).write("answer", answer)
    taking = await service.start_exec(session, ExecRequest(argv=("python3", "-c", program)))
    async for event in taking.events():
        if isinstance(event, Output):
            assert event.data.startswith(b"listening")  # and not an error
            break
    began = time.monotonic()
    try:
        assert await service.list_contexts(session) == []
    except Unavailable as error:
        assert "did not answer" in error.message
    cell = await run(service, session, "1", timeout_s=5, output_limit=100_000)
    assert cell.result.exit_code != 0
    assert len(cell.result.stdout) <= 100_000
    assert time.monotonic() - began < 15
    async with new_session(service, "kernels") as other:
        assert await value(service, other, "1") == "1"


async def test_what_speaks_to_the_socket_cannot_break_it(service: LocalWorker, session: str) -> None:
    await run(service, session, "x = 5")
    program = f"""
import os, socket
for text in (b"", b"\\n", b"{{", b"[]\\n", b"{{}}\\n", b'{{"op": "run"}}\\n', b'{{"op": "run", "context": 5}}\\n', b"\\xff\\n",
             b'{{"op": "nothing", "context": "python"}}\\n', b"[" * 100_000 + b"\\n", b"x" * 20_000_000 + b"\\n"):
    client = socket.socket(socket.AF_UNIX)
    client.connect({SOCKET!r})
    try:
        client.sendall(text)
    except OSError:
        pass
    client.close()
print(oct(os.stat({FOLDER!r}).st_mode & 0o777))
"""
    result = await service.execute(session, ExecRequest(argv=("python3", "-c", program)))
    assert result.stdout.decode().strip() == "0o700", result.stderr
    assert await value(service, session, "x") == "5"

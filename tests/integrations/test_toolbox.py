"""What a model can do in a sandbox, on a real one."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import pytest

from sandlot import AsyncSession, Client, Verdict
from sandlot.integrations import toolbox
from sandlot.integrations.sandboxes import Sandboxes
from sandlot.integrations.toolbox import Answer
from sandlot.integrations.toolbox.commands import exec_id_for_call
from tests.faults.rig import ServerProcess

pytestmark = pytest.mark.docker

Do = Callable[[Callable[[AsyncSession], Awaitable[Answer]]], Answer]


@pytest.fixture
def do(client: Client, thread: str) -> Do:
    sandboxes = Sandboxes(client)

    def run(operation: Callable[[AsyncSession], Awaitable[Answer]]) -> Answer:
        async def work(session: AsyncSession) -> Answer:
            return await operation(session)

        return sandboxes.run(thread, work)

    return run


def read(do: Do, job: str, wanted: str, since: int = 0, wait_s: float = 0) -> Answer:
    """Until it is there: it waits a moment only for what comes, and a loaded machine may need that itself."""
    deadline = time.monotonic() + 30
    while True:
        answer = do(lambda s: toolbox.read_output(s, job, since=since, wait_s=wait_s))
        if wanted in answer.text:
            return answer
        assert time.monotonic() < deadline, answer.text


def test_the_shell_keeps_its_state_until_it_is_restarted(do: Do) -> None:
    do(lambda s: toolbox.bash(s, "cd /tmp; export COLOUR=blue; count=3"))
    assert do(lambda s: toolbox.bash(s, "echo $PWD $COLOUR $count")).text == "/tmp blue 3"
    do(toolbox.restart)
    assert do(lambda s: toolbox.bash(s, "echo $PWD [$COLOUR]")).text == "/workspace []"


def test_a_failed_command_is_an_answer(do: Do) -> None:
    answer = do(lambda s: toolbox.bash(s, "echo out; echo err >&2; exit 3"))
    assert answer.failed
    assert answer.data["exit_code"] == 3
    assert (answer.data["stdout"], answer.data["stderr"]) == ("out\nerr\n", "")
    assert answer.text.startswith("out\nerr\n[exit code 3]")


def test_both_channels_are_in_the_order_of_writing(do: Do) -> None:
    command = "for i in $(seq 20); do echo out $i; echo err $i >&2; done"
    in_order = "\n".join(f"out {i}\nerr {i}" for i in range(1, 21))
    pieces: list[str] = []
    for _ in range(10):
        assert do(lambda s: toolbox.bash(s, command)).text == in_order
        pieces.clear()
        assert do(lambda s: toolbox.bash(s, command, on_output=pieces.append)).text == in_order
        assert "".join(pieces) == in_order + "\n"
    job = do(lambda s: toolbox.bash(s, command, background=True)).data["job"]
    assert in_order in read(do, job, "has ended", wait_s=10).text


def test_the_same_call_runs_once(do: Do) -> None:
    for _ in range(3):
        answer = do(lambda s: toolbox.bash(s, "echo x >> log; wc -l < log", call_id="turn-1/call-1"))
        assert answer.text == "1"
    assert do(lambda s: toolbox.bash(s, "echo x >> log; wc -l < log", call_id="turn-2/call-1")).text == "2"


def test_long_output_can_be_read_where_it_is(do: Do) -> None:
    answer = do(lambda s: toolbox.bash(s, "seq 200000", limit=1000))
    path = answer.data["output_path"]
    assert "bytes left out" in answer.text
    assert path in answer.text
    page = do(lambda s: toolbox.read_file(s, path, offset=99_999, lines=2))
    assert page.text == "100000\t100000\n100001\t100001\n[there is more; continue with offset=100001]"


def test_only_the_newest_long_outputs_are_kept(do: Do) -> None:
    for _ in range(6):
        do(lambda s: toolbox.bash(s, "seq 1000", limit=100))
    assert do(lambda s: toolbox.bash(s, "ls /tmp/.sandlot-output | wc -l")).text == "4"


def test_a_job_in_the_background(do: Do) -> None:
    do(lambda s: toolbox.bash(s, "mkdir -p here; cd here; export GREETING=hello"))
    begun = do(
        lambda s: toolbox.bash(s, "echo $GREETING from $PWD; read x; sleep 300 & wait", background=True)
    )
    job = begun.data["job"]
    first = read(do, job, "hello")
    assert first.text.startswith("hello from /workspace/here\n")
    assert first.data["running"] is True
    again = do(lambda s: toolbox.read_output(s, job, since=first.data["next_since"]))
    assert again.text.startswith("(no new output)")
    assert "was stopped" in do(lambda s: toolbox.stop(s, job)).text
    assert do(lambda s: toolbox.read_output(s, job)).data["running"] is False
    assert "had already ended" in do(lambda s: toolbox.stop(s, job)).text


def test_an_unknown_job_names_those_that_there_are(do: Do) -> None:
    job = do(lambda s: toolbox.bash(s, "true", background=True)).data["job"]
    answer = do(lambda s: toolbox.read_output(s, "job-nope"))
    assert answer.failed
    assert job in answer.text


def test_a_job_that_writes_much_keeps_its_newest_output(do: Do) -> None:
    job = do(lambda s: toolbox.bash(s, "seq 1000000; echo the end", background=True)).data["job"]
    answer = read(do, job, "the end", wait_s=20)
    assert len(answer.text) < 31_000


def test_files(do: Do) -> None:
    do(lambda s: toolbox.write_file(s, "src/a.py", "x = 1\ny = 1\n"))
    assert do(lambda s: toolbox.edit_file(s, "src/a.py", "x = 1", "x = 2")).data["replaced"] == 1
    assert "2 times" in do(lambda s: toolbox.edit_file(s, "src/a.py", "=", ":=")).text
    do(lambda s: toolbox.edit_file(s, "src/a.py", "=", ":=", replace_all=True))
    assert do(lambda s: toolbox.read_file(s, "src/a.py")).text == "     1\tx := 2\n     2\ty := 1"
    assert "not found in src/a.py" in do(lambda s: toolbox.edit_file(s, "src/a.py", "zzz", "")).text
    assert do(lambda s: toolbox.search(s, ":= 1")).text == "/workspace/src/a.py:2: y := 1"
    assert do(toolbox.list_files).text == "/workspace/src/"
    assert "a.py (14 bytes)" in do(lambda s: toolbox.list_files(s, depth=0)).text
    assert do(lambda s: toolbox.read_file(s, "nope")).text.startswith("[not_found:")


def test_editing_keeps_the_rest_byte_for_byte(do: Do) -> None:
    content = base64.b64encode(b"\xff\xfe old \r\n").decode()
    do(lambda s: toolbox.upload_file(s, "odd.bin", content))
    do(lambda s: toolbox.bash(s, "chmod 750 odd.bin"))
    do(lambda s: toolbox.edit_file(s, "odd.bin", "old", "new"))
    handed = do(lambda s: toolbox.download_file(s, "odd.bin"))
    assert base64.b64decode(handed.data["base64"]) == b"\xff\xfe new \r\n"
    assert do(lambda s: toolbox.bash(s, "stat -c %a odd.bin")).text == "750"


def test_an_expired_sandbox_is_told_of_once(client: Client, thread: str, do: Do) -> None:
    assert do(lambda s: toolbox.bash(s, "echo one > note; cat note")).text == "one"
    client.thread(thread).delete()
    first = do(lambda s: toolbox.bash(s, "cat note"))
    assert "this is a new, empty sandbox" in first.text
    assert "was deleted" in first.text
    assert "new, empty" not in do(lambda s: toolbox.bash(s, "cat note")).text


def test_a_job_that_never_stops_writing_is_read_within_bounds(do: Do) -> None:
    job = do(lambda s: toolbox.bash(s, "yes aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", background=True)).data["job"]
    first = do(lambda s: toolbox.read_output(s, job))
    assert len(first.text) < 31_000
    assert first.data["running"] is True
    do(lambda s: toolbox.stop(s, job))
    last = read(do, job, "has ended with exit code", since=10**15)
    assert "killed on request" in last.text


def test_what_is_not_text_is_an_answer(do: Do) -> None:
    do(lambda s: toolbox.write_file(s, "a.txt", "a"))
    for answer in (
        do(lambda s: toolbox.write_file(s, "b.txt", "\ud800")),
        do(lambda s: toolbox.edit_file(s, "a.txt", "\ud800", "b")),
        do(lambda s: toolbox.edit_file(s, "a.txt", "a", "\ud800")),
        do(lambda s: toolbox.bash(s, "echo \ud800")),
    ):
        assert answer.failed
        assert "is not valid Unicode text" in answer.text


def test_an_edit_is_done_once(do: Do) -> None:
    def edit(call_id: str) -> Answer:
        return do(lambda s: toolbox.edit_file(s, "a.py", "a = 1", "a = 1\nb = 2", call_id=call_id))

    do(lambda s: toolbox.write_file(s, "a.py", "a = 1\n"))
    assert [edit("call-1").failed, edit("call-1").failed] == [False, False]
    assert do(lambda s: toolbox.bash(s, "cat a.py")).text == "a = 1\nb = 2"
    edit("call-2")
    assert do(lambda s: toolbox.bash(s, "cat a.py")).text == "a = 1\nb = 2\nb = 2"


def test_a_restart_for_a_command_that_has_begun_is_not_made_again(do: Do) -> None:
    def call() -> Answer:
        do(
            lambda s: toolbox.restart(
                s, before_exec=exec_id_for_call("call-1", "export KEPT=1; echo $RANDOM")
            )
        )
        return do(lambda s: toolbox.bash(s, "export KEPT=1; echo $RANDOM", call_id="call-1"))

    assert call().text == call().text
    assert do(lambda s: toolbox.bash(s, "echo $KEPT")).text == "1"


def test_the_same_call_with_another_timeout_has_the_same_result(do: Do) -> None:
    for timeout_s in (50, 60):
        answer = do(
            lambda s, timeout_s=timeout_s: toolbox.bash(
                s, "echo x >> log; wc -l < log", call_id="call-1", timeout_s=timeout_s
            )
        )
        assert answer.text == "1"


def test_two_calls_under_one_id_both_run(do: Do) -> None:
    assert do(lambda s: toolbox.bash(s, "echo one", call_id="call-1")).text == "one"
    assert do(lambda s: toolbox.bash(s, "echo two", call_id="call-1")).text == "two"


def test_a_job_beside_a_busy_shell_says_what_it_lacks(do: Do) -> None:
    do(lambda s: toolbox.bash(s, "mkdir -p here; cd here; export TOKEN=1"))

    async def while_busy(session: AsyncSession) -> Answer:
        command = "touch busy; until [ -e free ]; do sleep 0.05; done"
        running = asyncio.ensure_future(toolbox.bash(session, command))
        while not await session.files.exists("here/busy"):
            await asyncio.sleep(0.05)
        answer = await toolbox.bash(session, "echo $PWD [$TOKEN]", background=True)
        await session.files.write("here/free", "")
        await running
        return answer

    begun = do(while_busy)
    assert "does not have the shell's variables" in begun.text
    job = begun.data["job"]
    assert read(do, job, "/workspace", wait_s=30).text.startswith("/workspace/here []\n")


def test_files_of_others_in_our_folder_stay(do: Do) -> None:
    do(
        lambda s: toolbox.bash(
            s, "mkdir -p src; touch src/f1 src/f2; ln -s /workspace/src /tmp/.sandlot-output"
        )
    )
    for _ in range(6):
        assert do(lambda s: toolbox.bash(s, "seq 1000", limit=100)).data["output_path"] is None
    assert "f1" in do(lambda s: toolbox.bash(s, "ls src")).text


def test_a_new_sandbox_is_told_of_once(client: Client, thread: str, do: Do) -> None:
    do(lambda s: toolbox.write_file(s, "note", "one"))
    client.thread(thread).delete()
    client.thread(thread)  # somebody whose answer never reached the model
    assert "new, empty sandbox" in do(lambda s: toolbox.read_file(s, "note")).text
    assert "new, empty sandbox" not in do(lambda s: toolbox.bash(s, "true")).text


def test_a_cancelled_command_ends_although_the_program_does_too(
    agent_server: ServerProcess, client: Client, thread: str
) -> None:
    program = """
import asyncio, sys
from sandlot import Client
from sandlot.integrations import toolbox
from sandlot.integrations.sandboxes import Sandboxes

async def once_it_runs(session, limit):
    while not await asyncio.to_thread(session.execs):
        await asyncio.sleep(0.05)
    limit.reschedule(0)

async def main():
    client = Client(sys.argv[1])
    sandboxes = Sandboxes(client)
    session = await asyncio.to_thread(client.thread, sys.argv[2])
    async with asyncio.timeout(None) as limit:
        watching = asyncio.create_task(once_it_runs(session, limit))
        await sandboxes.arun(sys.argv[2], lambda session: toolbox.bash(session, "sleep 300"))

try:
    asyncio.run(main())
except TimeoutError:
    print("gave up")
"""
    ran = subprocess.run(
        [sys.executable, "-c", program, agent_server.url, thread],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.stdout, ran.returncode) == ("gave up\n", 0), ran.stderr
    (summary,) = client.thread(thread).execs()
    status = client.thread(thread).exec(summary.exec_id).status(wait_s=30)
    assert status.result is not None, "it goes on"
    assert status.result.verdict is Verdict.KILLED

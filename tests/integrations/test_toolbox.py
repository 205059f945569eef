"""What a model can do in a sandbox, on a real one."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable

import pytest

from sandlot import AsyncSession, Client
from sandlot.integrations import toolbox
from sandlot.integrations.sandboxes import Sandboxes
from sandlot.integrations.toolbox import Answer

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


def test_the_shell_keeps_its_state_until_it_is_restarted(do: Do) -> None:
    do(lambda s: toolbox.bash(s, "cd /tmp; export COLOUR=blue; count=3"))
    assert do(lambda s: toolbox.bash(s, "echo $PWD $COLOUR $count")).text == "/tmp blue 3"
    do(toolbox.restart)
    assert do(lambda s: toolbox.bash(s, "echo $PWD [$COLOUR]")).text == "/workspace []"


def test_a_failed_command_is_an_answer(do: Do) -> None:
    answer = do(lambda s: toolbox.bash(s, "echo out; echo err >&2; exit 3"))
    assert answer.failed
    assert answer.data["exit_code"] == 3
    assert (answer.data["stdout"], answer.data["stderr"]) == ("out\n", "err\n")
    assert "[exit code 3]" in answer.text


def test_the_same_call_runs_once(do: Do) -> None:
    for _ in range(3):
        answer = do(lambda s: toolbox.bash(s, "echo x >> log; wc -l < log", call_id="turn-1/call-1"))
        assert answer.text == "1"
    assert do(lambda s: toolbox.bash(s, "echo x >> log; wc -l < log", call_id="turn-2/call-1")).text == "2"


def test_long_output_can_be_read_where_it_is(do: Do) -> None:
    answer = do(lambda s: toolbox.bash(s, "seq 200000", limit=1000))
    path = answer.data["output_path"]
    assert "characters left out" in answer.text
    assert path in answer.text
    page = do(lambda s: toolbox.read_file(s, path, offset=99_999, lines=2))
    assert page.text == "100000\t100000\n100001\t100001\n[more follows: offset=100001]"


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
    first = do(lambda s: toolbox.read_output(s, job))
    assert first.text.startswith("hello from /workspace/here\n")
    assert first.data["running"] is True
    again = do(lambda s: toolbox.read_output(s, job, since=first.data["next_since"]))
    assert again.text.startswith("(no new output)")
    assert "is stopped" in do(lambda s: toolbox.stop(s, job)).text
    assert do(lambda s: toolbox.read_output(s, job)).data["running"] is False
    assert "had ended before" in do(lambda s: toolbox.stop(s, job)).text


def test_an_unknown_job_names_those_that_there_are(do: Do) -> None:
    job = do(lambda s: toolbox.bash(s, "true", background=True)).data["job"]
    answer = do(lambda s: toolbox.read_output(s, "job-nope"))
    assert answer.failed
    assert job in answer.text


def test_a_job_that_writes_much_keeps_its_newest_output(do: Do) -> None:
    job = do(lambda s: toolbox.bash(s, "seq 1000000; echo the end", background=True)).data["job"]
    answer = do(lambda s: toolbox.read_output(s, job, wait_s=20))
    assert "the end" in answer.text
    assert len(answer.text) < 31_000


def test_files(do: Do) -> None:
    do(lambda s: toolbox.write_file(s, "src/a.py", "x = 1\ny = 1\n"))
    assert do(lambda s: toolbox.edit_file(s, "src/a.py", "x = 1", "x = 2")).data["replaced"] == 1
    assert "2 times" in do(lambda s: toolbox.edit_file(s, "src/a.py", "=", ":=")).text
    do(lambda s: toolbox.edit_file(s, "src/a.py", "=", ":=", replace_all=True))
    assert do(lambda s: toolbox.read_file(s, "src/a.py")).text == "     1\tx := 2\n     2\ty := 1"
    assert "not in src/a.py" in do(lambda s: toolbox.edit_file(s, "src/a.py", "zzz", "")).text
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
    assert "it was deleted" in first.text
    assert "new, empty" not in do(lambda s: toolbox.bash(s, "cat note")).text

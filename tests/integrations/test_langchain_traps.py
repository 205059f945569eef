"""What models do to a shell that was made for people. Each ends in time, with an answer that helps."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, ToolMessage

from sandlot import Client
from sandlot.integrations.langchain import sandbox_tools
from tests.integrations.scripted import by_conversation, calls, results

pytestmark = pytest.mark.docker

SECONDS = 60  # of a command that ought to end by itself; none comes near it
Do = Callable[..., list[ToolMessage]]


@pytest.fixture
def do(client: Client, thread: str) -> Do:
    """Calls in turn, as a model makes them, each given as its tool and its arguments."""

    def run(*wanted: tuple[str, dict[str, Any]]) -> list[ToolMessage]:
        agent = create_agent(by_conversation(*(calls(call) for call in wanted)), sandbox_tools(client))
        config = {"configurable": {"thread_id": thread}, "recursion_limit": 100}
        state = agent.invoke({"messages": [HumanMessage("go on")]}, config)
        assert state["messages"][-1].text == "all done"
        return results(state)

    return run


def bash(command: str, timeout_s: float = SECONDS, **more: Any) -> tuple[str, dict[str, Any]]:
    return "bash", {"command": command, "timeout_s": timeout_s, **more}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("python3", "(no output)"),
        ("cat", "(no output)"),
        ("read -p 'Sure? ' answer; echo \"[$answer]\"", "[]"),
        ("python3 -c 'input(\"Name: \")'", "EOFError"),
        ("bash -i -c 'echo inside'", "inside"),
        ("top -b -n 1 | head -1 | cut -c 1-3", "top"),
        ("sudo ls", "exit code"),
        ("less /etc/hostname | wc -l", "1"),
        ("no-such-program", "[exit code 127: command not found]"),
        ("echo 'open", "exit code"),
    ],
)
def test_nobody_is_there_to_type(do: Do, command: str, said: str) -> None:
    (answer,) = do(bash(command))
    assert said in answer.text
    assert not answer.artifact["timed_out"]


@pytest.mark.parametrize("command", ["echo begun; sleep 1000", "echo begun; while true; do :; done"])
def test_what_never_ends_is_ended(do: Do, command: str) -> None:
    left = "pgrep -fx 'sleep 1000'"  # killed, and for a moment perhaps not yet taken note of
    look = f"echo still here; for i in $(seq 100); do {left} || break; sleep 0.1; done >/dev/null; {left} -c"
    answer, after = do(bash(command, 3), bash(look))
    assert answer.text.startswith("begun\n")
    assert "timed out after" in answer.text
    assert "in the background" in answer.text
    assert "the shell ended" in answer.text
    assert after.text.startswith("still here\n0")


def test_five_megabytes_of_output(do: Do) -> None:
    answer, whole, part = do(
        bash("seq -f 'line %.0f' 400000"),
        bash("wc -lc < $(ls -t /tmp/.sandlot-output/* | head -1)"),
        bash("sed -n 200000p /tmp/.sandlot-output/*"),
    )
    assert len(answer.text) < 31_000
    assert answer.text.startswith("line 1\nline 2\n")
    assert answer.text.endswith("line 400000")
    assert "bytes left out; the full output is in /tmp/.sandlot-output/" in answer.text
    assert whole.text.split() == ["400000", str(answer.artifact["output_bytes"])]
    assert answer.artifact["output_bytes"] > 4_500_000
    assert part.text == "line 200000"


def test_output_without_end(do: Do) -> None:
    answer, after = do(bash("yes 'the same again'", 2), bash("echo still here"))
    assert len(answer.text) < 32_000
    assert "timed out after" in answer.text
    assert f"the command wrote {answer.artifact['output_bytes']:,} bytes" in answer.text
    assert "as far as it was kept" in answer.text
    assert after.text == "still here"


REQUEST = (
    "for i in $(seq 100); do "
    "python3 -c 'import urllib.request as r; print(r.urlopen(\"http://127.0.0.1:%d/hello\").read().decode())' "
    "2>/dev/null && break; sleep 0.1; done"
)


@pytest.mark.parametrize("start", ["{} &", "nohup {} > server.log 2>&1 &", "({} &)"])
def test_a_server_behind_the_shell(do: Do, start: str) -> None:
    server = start.format("python3 -m http.server 8123")
    begun, answer = do(bash(f"echo hi > hello; {server}"), bash(REQUEST % 8123))
    assert not begun.artifact["timed_out"]
    assert begun.artifact["exit_code"] == 0
    assert answer.text == "hi"


def test_a_server_as_a_job(client: Client, do: Do) -> None:
    begun, answer = do(
        bash("echo hi > hello; cd /; cd - >/dev/null; exec python3 -u -m http.server 8124", background=True),
        bash(REQUEST % 8124),
    )
    job = begun.artifact["job"]
    assert job in begun.text
    assert "read_output" in begun.text
    assert answer.text == "hi"
    deadline = time.monotonic() + 30
    while True:
        # It waits a moment only for what comes, and a loaded machine may need that itself.
        (running,) = do(("read_output", {"job": job}))
        if "GET /hello" in running.text:
            break
        assert time.monotonic() < deadline, running.text
    stopped, ended, gone = do(
        ("stop", {"job": job}),
        ("read_output", {"job": job, "wait_s": 20}),
        bash("pgrep -f '[h]ttp.server 8124' || echo gone"),
    )
    assert "is running" in running.text
    assert "was stopped" in stopped.text
    assert "has ended" in ended.text
    assert gone.text == "gone"


def test_a_heredoc_of_two_megabytes(do: Do) -> None:
    content = "".join(f"row {number}: some text to fill the file up\n" for number in range(50_000))
    assert len(content) > 2_000_000
    answer, written = do(
        bash(f"cat > big.txt <<'EOF'\n{content}EOF\nwc -c < big.txt; tail -1 big.txt"),
        ("write_file", {"path": "again.txt", "content": content}),
    )
    assert answer.text == f"{len(content)}\nrow 49999: some text to fill the file up"
    assert f"wrote {len(content)} bytes" in written.text


def test_unicode_and_binary(do: Do) -> None:
    data = bytes(range(256)) * 4
    text = "naïve café — 日本語 🦊\n"
    said = do(
        ("write_file", {"path": "ordner ü/日本.txt", "content": text}),
        bash("cat 'ordner ü/日本.txt'"),
        ("read_file", {"path": "ordner ü/日本.txt"}),
        ("edit_file", {"path": "ordner ü/日本.txt", "old": "🦊", "new": "🐻"}),
        ("search", {"pattern": "🐻"}),
        ("upload_file", {"path": "all.bin", "content_base64": base64.b64encode(data).decode()}),
        ("read_file", {"path": "all.bin"}),
        bash("cat all.bin; echo; echo end"),
        ("download_file", {"path": "all.bin"}),
        bash(r"printf '\033[31mred\033[0m\n10%%\r100%%\n'"),
    )
    _, shown, read, _, found, _, not_text, raw, handed, colours = said
    assert shown.text == text.rstrip("\n")
    assert text.rstrip("\n") in read.text
    assert "🐻" in found.text
    assert not_text.status == "error"
    assert "is not a text file (1024 bytes)" in not_text.text
    assert raw.text.endswith("end")
    assert "\x1b" not in raw.text
    assert "\0" not in raw.text
    assert base64.b64decode(handed.artifact["base64"]) == data
    assert colours.text == "red\n100%"


def test_a_shell_that_is_left_is_told(do: Do) -> None:
    left, strict, after = do(bash("X=1; exit 3"), bash("set -e; false"), bash("echo [$X]"))
    assert "[exit code 3]" in left.text
    assert "the shell ended" in left.text
    assert "the shell ended" in strict.text
    assert after.text == "[]"


def test_no_network_is_an_answer(do: Do) -> None:
    (answer,) = do(
        bash("python3 -c 'import urllib.request as r; r.urlopen(\"http://192.0.2.1\", timeout=5)'")
    )
    assert answer.artifact["exit_code"] == 1
    assert "Sandlot denied 192.0.2.1" in answer.text
    assert not answer.artifact["timed_out"]

"""The command line against a real server, each command a process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.cutting_proxy import CuttingProxy
from tests.unit.cli.conftest import KEY, SANDLOT, SECONDS, Served, environment
from typer.testing import CliRunner

from sandlot.cli import files
from sandlot.cli.main import app
from sandlot.domain.errors import FileProblem

pytestmark = pytest.mark.slow  # each case starts a process of its own


def failed(served: Served, *arguments: str, code: int = 1, **variables: str) -> str:
    ran = subprocess.run(
        [*SANDLOT, *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=served.environment(**variables),
    )
    assert ran.returncode == code, (ran.returncode, ran.stdout, ran.stderr)
    assert "Traceback" not in ran.stderr
    return ran.stderr


def ids(served: Served) -> set[str]:
    return {session["id"] for session in json.loads(served.sandlot("sessions", "list", "--json"))}


# --- run --------------------------------------------------------------------------------------


def test_run_prints_ends_with_the_commands_code_and_leaves_nothing(served: Served) -> None:
    before = ids(served)
    process = served.start("run", "echo out; echo err >&2; exit 3")
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, out, err) == (3, b"out\n", b"err\n")
    assert ids(served) == before


def test_merged_output_is_all_on_stdout(served: Served) -> None:
    command = "echo a; echo b >&2; echo c"
    process = served.start("run", "--merge-output", command)
    assert process.communicate(timeout=SECONDS) == (b"a\nb\nc\n", b"")
    result = json.loads(served.sandlot("run", "--merge-output", "--json", command))
    assert (result["stdout"], result["stderr"]) == ("a\nb\nc\n", "")
    process = served.start("exec", "--merge-output", served.create(), command)
    assert process.communicate(timeout=SECONDS) == (b"a\nb\nc\n", b"")


def test_several_words_are_taken_as_they_are(served: Served) -> None:
    assert served.sandlot("run", "--", "echo", "-n", "$HOME  ; exit 4") == b"$HOME  ; exit 4"
    assert served.sandlot("run", "echo", "--json", "--keep") == b"--json --keep\n"


def test_output_arrives_while_the_command_runs(served: Served) -> None:
    process = served.start("run", "echo first; sleep 60")
    assert process.stdout is not None
    assert process.stdout.readline() == b"first\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=SECONDS)
    assert process.returncode == 128 + signal.SIGINT


async def test_who_interrupts_does_not_wait_for_a_server_that_is_away(served: Served) -> None:
    port = int(served.url.rpartition(":")[2])
    async with CuttingProxy(port, lambda n: None) as proxy:
        session_id = await asyncio.to_thread(served.create)
        process = served.start("exec", session_id, "echo first; sleep 60", SANDLOT_URL=proxy.url)
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == b"first\n"
    began = time.monotonic()
    assert process.stderr is not None
    process.send_signal(signal.SIGINT)
    assert b"Press Ctrl-C again to leave it running." in await asyncio.to_thread(process.stderr.readline)
    process.send_signal(signal.SIGTERM)
    _, said = await asyncio.to_thread(process.communicate, timeout=SECONDS)
    assert process.returncode == 128 + signal.SIGTERM
    assert b"may still be running" in said
    assert time.monotonic() - began < 20  # of the 30 s for which it would wait


def test_run_json_is_the_whole_result(served: Served) -> None:
    result = json.loads(served.sandlot("run", "--json", "echo hi; exit 2", code=2))
    assert (result["stdout"], result["exit_code"], result["verdict"]) == ("hi\n", 2, "nonzero")


def test_a_timeout_is_said(served: Served) -> None:
    message = failed(served, "run", "--timeout", "0.2", "sleep 60", code=128 + signal.SIGTERM)
    assert "Command timed out after " in message


def test_a_kept_session_is_named_and_lives(served: Served) -> None:
    process = served.start("run", "--keep", "echo x > /workspace/x")
    _, err = process.communicate(timeout=SECONDS)
    session_id = err.split()[-1].decode()
    assert f"sandlot: Kept session {session_id}. " in err.decode()
    assert served.sandlot("files", "cat", f"{session_id}:x") == b"x\n"
    assert served.sandlot("sessions", "delete", session_id).split() == [session_id.encode()]
    assert session_id not in ids(served)


def test_a_thread_is_one_session(served: Served) -> None:
    served.sandlot("run", "--thread", "talk-1", "echo kept > /workspace/note")
    assert served.sandlot("run", "--thread", "talk-1", "cat /workspace/note") == b"kept\n"
    listed = json.loads(served.sandlot("sessions", "list", "--thread", "talk-1", "--json"))
    assert [session["thread"] for session in listed] == ["talk-1"]


def test_a_reader_that_goes_ends_the_command(served: Served) -> None:
    process = served.start("run", "yes")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(SECONDS) == 128 + signal.SIGPIPE
    assert process.stderr is not None
    assert b"Traceback" not in process.stderr.read()
    process.communicate()


# --- exec -------------------------------------------------------------------------------------


def test_exec_forwards_input_and_its_end_and_keeps_the_pipes_apart(served: Served) -> None:
    session_id = served.create()
    process = served.start("exec", "-i", session_id, "--", "bash", "-c", "cat; echo done >&2; exit 5")
    out, err = process.communicate(b"one\n\x00\xff two", timeout=SECONDS)
    assert (process.returncode, out, err) == (5, b"one\n\x00\xff two", b"done\n")


def test_exec_answers_line_by_line(served: Served) -> None:
    session_id = served.create()
    process = served.start("exec", "-i", session_id, "cat")
    assert process.stdin is not None
    assert process.stdout is not None
    for line in (b"ping\n", b"pong\n"):
        process.stdin.write(line)
        process.stdin.flush()
        assert process.stdout.readline() == line
    process.communicate(timeout=SECONDS)
    assert process.returncode == 0


def test_exec_without_i_reads_nothing(served: Served) -> None:
    session_id = served.create()
    assert served.sandlot("exec", session_id, "cat; echo end", stdin=b"unread") == b"end\n"


def test_exec_takes_a_file_as_input(served: Served, tmp_path: Path) -> None:
    session_id = served.create()
    (tmp_path / "in").write_bytes(b"x" * 300_000)
    with (tmp_path / "in").open("rb") as file:
        ran = subprocess.run(
            [*SANDLOT, "exec", "-i", session_id, "wc", "-c"],
            stdin=file,
            capture_output=True,
            timeout=SECONDS,
            env=served.environment(),
        )
    assert ran.stdout.split()[0] == b"300000", ran.stderr


def test_exec_ends_although_our_input_stays_open(served: Served) -> None:
    session_id = served.create()
    process = served.start("exec", "-i", session_id, "echo", "gone")
    assert process.wait(SECONDS) == 0
    assert process.communicate()[0] == b"gone\n"


# --- sessions ---------------------------------------------------------------------------------


def test_show_extend_recreate(served: Served) -> None:
    session_id = served.create()
    shown = served.sandlot("sessions", "show", session_id).decode()
    assert "512 MiB" in shown
    before = json.loads(served.sandlot("sessions", "show", "--json", session_id))
    after = json.loads(served.sandlot("sessions", "extend", "--json", session_id, "2h"))
    assert after["lifetime_s"] > before["lifetime_s"]
    assert "cannot be never" in failed(served, "sessions", "extend", session_id, "never", code=2)
    assert "is not a valid time" in failed(served, "sessions", "extend", session_id, "²")
    served.service.lose(session_id)
    assert "sessions recreate" in failed(served, "exec", session_id, "true")
    assert "lost" in served.sandlot("sessions", "list").decode()
    assert json.loads(served.sandlot("sessions", "recreate", "--json", session_id))["generation"] == 2


def test_a_table_in_a_pipe_is_lines_with_tabs(served: Served) -> None:
    session_id = served.create()
    head, *rows = served.sandlot("sessions", "list").decode().splitlines()
    assert head.split("\t")[0] == "SESSION"
    assert session_id in {row.split("\t")[0] for row in rows}
    assert "\x1b" not in head + "".join(rows)


# --- files ------------------------------------------------------------------------------------


def test_files_there_and_back(served: Served, tmp_path: Path) -> None:
    session_id = served.create()
    content = os.urandom(1_000_000)
    (tmp_path / "data.bin").write_bytes(content)
    served.sandlot("files", "put", str(tmp_path / "data.bin"), f"{session_id}:deep/copy.bin")
    served.sandlot("files", "put", str(tmp_path / "data.bin"), f"{session_id}:deep/")
    listed = json.loads(served.sandlot("files", "ls", "--json", f"{session_id}:deep"))
    assert {entry["name"] for entry in listed} == {"copy.bin", "data.bin"}
    served.sandlot("files", "get", f"{session_id}:deep/copy.bin", str(tmp_path / "back.bin"))
    assert (tmp_path / "back.bin").read_bytes() == content
    assert served.sandlot("files", "cat", f"{session_id}:deep/copy.bin") == content
    failed(served, "files", "rm", f"{session_id}:deep")
    served.sandlot("files", "rm", "-r", f"{session_id}:deep")
    assert "deep" not in served.sandlot("files", "ls", session_id).decode()


def test_folders_there_and_back(served: Served, tmp_path: Path) -> None:
    session_id = served.create()
    (tmp_path / "tree/below").mkdir(parents=True)
    (tmp_path / "tree/below/a").write_text("a")
    served.sandlot("files", "put", str(tmp_path / "tree"), f"{session_id}:tree")
    assert served.sandlot("files", "cat", f"{session_id}:tree/below/a") == b"a"
    served.sandlot("files", "get", f"{session_id}:tree", str(tmp_path / "copy"))
    assert (tmp_path / "copy/below/a").read_text() == "a"


def test_a_failed_download_leaves_what_was_there(served: Served, tmp_path: Path) -> None:
    session_id = served.create()
    (tmp_path / "kept").write_text("before")
    failed(served, "files", "get", f"{session_id}:none", str(tmp_path / "kept"))
    assert (tmp_path / "kept").read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_reader_that_goes_ends_cat(served: Served, tmp_path: Path) -> None:
    session_id = served.create()
    (tmp_path / "big").write_bytes(bytes(8_000_000))
    served.sandlot("files", "put", str(tmp_path / "big"), f"{session_id}:big")
    process = served.start("files", "cat", f"{session_id}:big")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(SECONDS) == 128 + signal.SIGPIPE
    process.communicate()


def test_a_copy_is_bounded_and_leaves_nothing(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = served.create()
    served.sandlot("exec", session_id, "printf 12345 > /workspace/five")
    options = ["--url", served.url, "--api-key", KEY, "files", "get", f"{session_id}:five"]
    monkeypatch.setattr(files, "_MAX_DOWNLOAD_BYTES", 4)
    refused = CliRunner().invoke(app, [*options, str(tmp_path / "copy")])
    assert isinstance(refused.exception, FileProblem)
    assert refused.exception.message.startswith("five is larger than 4 bytes")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(files, "_MAX_DOWNLOAD_BYTES", 5)
    assert CliRunner().invoke(app, [*options, str(tmp_path / "copy")]).exit_code == 0
    assert (tmp_path / "copy").read_bytes() == b"12345"


def test_hostile_names_do_not_steer_the_terminal(served: Served) -> None:
    session_id = served.create()
    served.sandlot("run", "--thread", "evil", "true")
    served.sandlot("exec", session_id, "printf x > '/workspace/\x1b]0;owned\x07'")
    shown = served.sandlot("files", "ls", session_id)
    assert b"owned" in shown
    assert b"\x1b" not in shown
    assert b"\x07" not in shown


@pytest.mark.parametrize("remote", ["nothing", ":path", "ses_1:"])
def test_a_place_needs_a_session_and_a_path(served: Served, remote: str) -> None:
    assert "Write SESSION:PATH" in failed(served, "files", "cat", remote, code=2)


# --- catalogue --------------------------------------------------------------------------------


def test_environments_and_registry(served: Served) -> None:
    assert {e["name"] for e in json.loads(served.sandlot("env", "list", "--json"))} == {
        *("base", "slim", "gvisor"),
        *("python", "data-science", "code", "node"),
    }
    header, *rows = [line.split("\t") for line in served.sandlot("env", "list").decode().splitlines()]
    assert {row[header.index("STATE")] for row in rows} == {"ready"}
    shown = served.sandlot("env", "show", "gvisor").decode()
    assert "runsc" in shown
    assert re.search(r"^state on fake +ready since \d{4}-", shown, re.MULTILINE)
    assert "Available: base, code, data-science, gvisor, node, python, slim" in failed(
        served, "env", "show", "windows"
    )
    assert "environment\tbase" in served.sandlot("registry", "list").decode()


def test_bench_of_what_is_not_there(served: Served, tmp_path: Path) -> None:
    (tmp_path / "docker").touch(0o755)  # asked for, never run
    told = failed(served, "bench", "--environment", "typo", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert told.startswith("sandlot: Unknown environment 'typo'")
    assert len([line for line in told.splitlines() if not line.startswith("  request ")]) == 1


# --- errors -----------------------------------------------------------------------------------


def test_errors_are_one_line_and_what_to_do(served: Served) -> None:
    missing = failed(served, "sessions", "show", "ses_" + "0" * 32)
    assert missing.startswith("sandlot: ")
    wrong_key = failed(served, "sessions", "list", SANDLOT_API_KEY="not-the-key-at-all")
    assert "--api-key" in wrong_key
    nobody = failed(served, "sessions", "list", SANDLOT_URL="http://127.0.0.1:1")
    assert "Is a Sandlot server running there?" in nobody
    assert len(nobody.splitlines()) == 2
    assert nobody.count("?") == 1
    no_port = failed(served, "sessions", "list", SANDLOT_URL="http://localhost:99999")
    assert "65535" in no_port
    assert len(no_port.splitlines()) == 1
    assert "environment" in failed(served, "run", "--environment", "windows", "true")


def test_options_win_over_the_environment(served: Served) -> None:
    ran = subprocess.run(
        [*SANDLOT, "--url", served.url, "--api-key", "a-key-for-the-tests", "env", "list"],
        capture_output=True,
        env=environment(SANDLOT_URL="http://127.0.0.1:1", SANDLOT_API_KEY="wrong"),
        timeout=SECONDS,
    )
    assert ran.returncode == 0, ran.stderr


def test_usage_errors_end_with_2(served: Served) -> None:
    failed(served, "run", code=2)
    failed(served, "frobnicate", code=2)
    failed(served, "shell", "--session", "x", "--thread", "y", code=2)


def test_exec_without_a_command_says_so(served: Served) -> None:
    session_id = served.create()
    for words in ([session_id], [session_id, "--"]):
        assert "Missing command." in failed(served, "exec", *words)


def test_a_terminal_is_asked_for_where_none_is(served: Served) -> None:
    session_id = served.create()
    assert "`sandlot exec` without -t" in failed(served, "exec", "-t", session_id, "bash")


# --- U13: variables and threads ----------------------------------------------------------------


def test_u13_env_sets_variables_and_environment_chooses_the_environment(served: Served) -> None:
    assert served.sandlot("run", "-e", "A=1=2", "--env", "B=", "echo $A-$B-") == b"1=2--\n"
    told = failed(served, "run", "--env", "gvisor", "true", code=2)
    assert "NAME=VALUE" in told
    assert "--environment gvisor" in told.replace("\n", " ")
    result = json.loads(served.sandlot("run", "--environment", "gvisor", "--keep", "--json", "true"))
    shown = served.sandlot("sessions", "show", result["session_id"], "--json")
    assert json.loads(shown)["environment"] == "gvisor"
    assert served.sandlot("exec", "-e", "A=x", result["session_id"], "echo $A") == b"x\n"


def test_u13_a_thread_in_place_of_a_session(served: Served, tmp_path: Path) -> None:
    thread = ("--thread", "Zoë / 13")
    served.sandlot("run", *thread, "echo kept > note; mkdir folder")
    assert served.sandlot("exec", *thread, "cat note") == b"kept\n"
    assert served.sandlot("exec", *thread, "--", "echo", "-n", "two words") == b"two words"
    assert served.sandlot("files", "cat", *thread, "note") == b"kept\n"
    assert b"note" in served.sandlot("files", "ls", *thread)
    (tmp_path / "local").write_text("put")
    assert served.sandlot("files", "put", *thread, str(tmp_path / "local"), "folder/") != b""
    served.sandlot("files", "get", *thread, "folder/local", str(tmp_path / "back"))
    assert (tmp_path / "back").read_text() == "put"
    served.sandlot("files", "rm", *thread, "note")
    deleted = served.sandlot("sessions", "delete", *thread).decode().strip()
    assert deleted.startswith("ses_")
    assert "has no session" in failed(served, "exec", *thread, "true")
    assert "Pass a SESSION or --thread" in failed(served, "sessions", "delete", code=2)

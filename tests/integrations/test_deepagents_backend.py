"""The backend by itself, called as programs and the framework's middleware call it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator

import pytest
from deepagents.backends import CompositeBackend
from deepagents.backends.utils import compile_grep_include_glob
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from sandlot import AsyncClient, Client
from sandlot.domain.errors import InvalidRequest
from sandlot.integrations.deepagents import SandlotBackend
from tests.faults.rig import ServerProcess
from tests.integrations.scripted import run_of, said

pytestmark = pytest.mark.docker

TREE = (
    "top.py",
    "a.txt",
    ".hidden.py",
    "src/app/main.py",
    "src/app/main.ts",
    "src/app/x[1].py",
    "src/{b}.py",
    ".github/workflows/ci.yml",
    ".git/config.py",
    "deep/er/and/deeper.py",
)
PATTERNS = (
    "*.py",
    "/*.py",
    "**/*.py",
    "src/**/*.py",
    "*.{py,ts}",
    "{src,deep}/**/*.py",
    "src/app/*.{py,{ts,js}}",
    "{src/app,deep}/*.py",
    "*.yml",
    "**/*.yml",
    ".*",
    ".*/**",
    "[!t]*.py",
    "[^t]*.py",
    "x\\[1\\].py",
    "main.?s",
    "src//app//main.py",
    "src/",
    "*",
    "**",
    "nothing",
    "[",
    "*.{py",
)


@pytest.fixture(scope="module")
def backend(agent_server: ServerProcess) -> Iterator[SandlotBackend]:
    thread = f"backend-{secrets.token_hex(6)}"
    with Client(agent_server.url) as client:
        yield SandlotBackend(client, thread=thread)
        for session in client.sessions(thread=thread):
            session.delete()


@pytest.fixture(scope="module")
def tree(backend: SandlotBackend) -> str:
    root = "/workspace/tree"
    uploaded = backend.upload_files([(f"{root}/{name}", b"first\nneedle here\n") for name in TREE])
    assert [response.error for response in uploaded] == [None] * len(TREE)
    return root


@pytest.mark.parametrize("pattern", PATTERNS)
def test_glob_and_grep_find_what_the_frameworks_own_matcher_accepts(
    backend: SandlotBackend, tree: str, pattern: str
) -> None:
    matches = compile_grep_include_glob(pattern)
    expected = sorted(f"{tree}/{name}" for name in TREE if matches(name))
    found = backend.glob(pattern, f"/{tree}/./")
    assert (found.error, found.truncated) == (None, False)
    assert [info["path"] for info in found.matches or []] == expected

    grepped = backend.grep("needle", tree, pattern)
    assert (grepped.error, grepped.truncated) == (None, False)
    outside_of_git = [path for path in expected if "/.git/" not in path]
    assert sorted(match["path"] for match in grepped.matches or []) == outside_of_git
    assert {(match["line"], match["text"]) for match in grepped.matches or []} <= {(2, "needle here")}


def test_a_pattern_that_leads_out_is_refused(backend: SandlotBackend, tree: str) -> None:
    assert "traversal" in (backend.glob("../*", tree).error or "")
    assert "traversal" in (backend.grep("needle", tree, "../*").error or "")


def test_a_pattern_that_is_too_long_is_refused(backend: SandlotBackend, tree: str) -> None:
    pattern = "{" * 8000 + "}" * 8000
    assert "the maximum is 1000" in (backend.glob(pattern, tree).error or "")
    assert "the maximum is 1000" in (backend.grep("needle", tree, pattern).error or "")
    assert backend.glob("x" * 1000, tree).error is None


def test_grep_counts_what_is_wanted_and_says_when_there_is_more(backend: SandlotBackend, tree: str) -> None:
    assert len(backend.grep("needle", tree, max_count=3).matches or []) == 3
    assert backend.grep("needle", tree, max_count=3).truncated
    exact = backend.grep("needle", tree, "*.py", max_count=5)
    assert (len(exact.matches or []), exact.truncated) == (5, False)
    assert len(backend.grep("needle", f"{tree}/.git").matches or []) == 1
    assert len(backend.grep("needle", f"{tree}/top.py", "*.txt").matches or []) == 1
    assert "one line at a time" in (backend.grep("a\nb", tree).error or "")
    assert "file_not_found" in (backend.grep("needle", "/nowhere").error or "")


def test_a_search_of_everything_leaves_out_what_is_no_file_of_anybody(backend: SandlotBackend) -> None:
    paths = [info["path"] for info in backend.glob("{version,hostname,top.py}", "/").matches or []]
    assert "/etc/hostname" in paths
    assert not [path for path in paths if path.startswith(("/proc/", "/sys/", "/dev/"))]


def test_words_that_the_framework_acts_on(backend: SandlotBackend) -> None:
    backend.write("/workspace/plain", "x")
    assert backend.ls("/workspace/plain").error == "Path '/workspace/plain': not_a_directory"
    assert backend.ls("/nowhere").error == "Path '/nowhere': path_not_found"
    denied, missing = backend.download_files(["/etc/shadow", "/nowhere"])
    assert (denied.error, missing.error) == ("permission_denied", "file_not_found")
    (refused,) = backend.upload_files([("/etc/passwd", b"")])
    assert refused.error == "permission_denied"
    assert backend.delete("/nowhere").error == "Error: '/nowhere' not found"
    assert backend.delete("/workspace/plain").path == "/workspace/plain"
    assert backend.read("/workspace/plain").error == "File '/workspace/plain': file_not_found"


@pytest.mark.parametrize("folder", ["/large_tool_results", "/conversation_history", "/blobs"])
def test_what_the_framework_keeps_at_the_root_has_a_place(backend: SandlotBackend, folder: str) -> None:
    path = f"{folder}/deeper/notes.md"
    assert backend.write(path, "one\n").path == path
    assert backend.edit(path, "one", "two").path == path
    assert (backend.read(path).file_data or {}).get("content") == "two"
    assert [info["path"] for info in backend.ls(f"{folder}/deeper").entries or []] == [path]
    assert [match["path"] for match in backend.grep("two", folder).matches or []] == [path]
    assert backend.execute(f"cat /workspace/.deepagents{path}").output == "two\n"
    assert backend.delete(folder).path == folder
    assert backend.download_files([path])[0].error == "file_not_found"
    assert "permission_denied" in (backend.write(f"{folder}2/x", "x").error or "")


def test_what_is_no_text_is_answered_not_raised(backend: SandlotBackend) -> None:
    assert "half a character" in (backend.write("/workspace/x", "\ud83d").error or "")
    assert "half a character" in (backend.edit("/etc/hostname", "\ud83d", "").error or "")
    assert "NUL" in backend.execute("echo \0").output
    assert "not valid Unicode text" in backend.execute("echo \ud83d").output
    assert backend.ls("/work\0space").error == "Path '/work\0space': invalid_path"


def test_edits_keep_line_ends_modes_and_bytes(backend: SandlotBackend) -> None:
    path = "/workspace/edited"
    backend.upload_files([(path, b"one\r\ntwo\r\nthree \xff\r\n")])
    backend.execute(f"chmod 750 {path}")
    assert backend.edit(path, "one\ntwo", "1\n2").occurrences == 1
    (after,) = backend.download_files([path])
    assert after.content == b"1\r\n2\r\nthree \xff\r\n"
    assert backend.execute(f"stat -c %a {path}").output == "750\n"


def test_an_edit_of_a_step_that_is_executed_again_is_done_once(client: Client, thread: str) -> None:
    """Its new text contains the old one, so that nothing in the file itself tells that it was done."""
    backend = SandlotBackend(client, thread=thread)
    path, tries = "/workspace/edited", []
    backend.write(path, "a = 1\n")

    def step(_: MessagesState) -> None:
        tries.append(backend.edit(path, "a = 1", "a = 1\nb = 2"))
        if len(tries) == 1:
            raise RuntimeError("the program breaks off")

    graph = StateGraph(MessagesState)
    graph.add_node("step", step)
    graph.add_edge(START, "step")
    agent = graph.compile(checkpointer=InMemorySaver())
    with pytest.raises(RuntimeError, match="breaks off"):
        agent.invoke(said("go"), run_of(thread))
    agent.invoke(None, run_of(thread))
    assert [(result.error, result.occurrences) for result in tries] == [(None, 1), (None, 1)]
    assert client.thread(thread).files.read_text(path) == "a = 1\nb = 2\n"
    agent.invoke(said("again"), run_of(thread))  # another step, with the same words
    assert client.thread(thread).files.read_text(path) == "a = 1\nb = 2\nb = 2\n"


def test_a_shell_lasts_and_says_when_it_has_ended(backend: SandlotBackend) -> None:
    backend.execute("export KEPT=1; cd /tmp")
    assert backend.execute("echo $KEPT $PWD").output == "1 /tmp\n"
    timed_out = backend.execute("echo part; sleep 30", timeout=3)
    assert (timed_out.output, timed_out.exit_code) == ("part\n", 124)
    backend.execute("export KEPT=2; cd /workspace")
    told = backend.execute_with_offload("echo part; exit 3", "/large_tool_results/x", max_inline_bytes=1000)
    assert told.response.exit_code == 3
    assert told.response.output.startswith("part\n")
    assert "the shell ended, and its variables" in told.response.output
    assert backend.execute("echo -$KEPT-").output == "--\n"


async def test_commands_given_at_once_queue_for_a_shell_or_run_at_once_without_one(
    agent_server: ServerProcess, client: Client, thread: str
) -> None:
    lasting = SandlotBackend(client, thread=thread)
    count = "n=$((n+1)); sleep 0.05; echo $n"
    responses = await asyncio.gather(*(lasting.aexecute(count) for _ in range(8)))
    assert sorted(int(response.output) for response in responses) == list(range(1, 9))
    anew = SandlotBackend(client, thread=thread, shell=None)
    await anew.aexecute("mkfifo meet")
    heard, _ = await asyncio.gather(anew.aexecute("cat meet", timeout=20), anew.aexecute("echo hi > meet"))
    assert heard.output == "hi\n"
    assert (await anew.aexecute("echo -$n-")).output == "--\n"


async def test_a_call_that_is_cancelled_leaves_nothing_in_the_shells_way(client: Client, thread: str) -> None:
    backend = SandlotBackend(client, thread=thread)
    waiting = asyncio.create_task(backend.aexecute("touch begun; sleep 100", timeout=120))
    for _ in range(200):
        if any(
            info["path"] == "/workspace/begun" for info in (await backend.als("/workspace")).entries or []
        ):
            break
        await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    after = await asyncio.wait_for(backend.aexecute("echo free"), 60)
    assert after.output == "free\n"


def test_output_that_cannot_be_kept_is_shown_as_far_as_there_is_room(backend: SandlotBackend) -> None:
    """Where the file is to be is the application's choice, and may be wrong."""
    kept = CompositeBackend(backend, {}, artifacts_root="/workspace/artifacts")
    assert kept.write("/workspace/artifacts/large_tool_results/x", "x").error is None
    command = "seq 1 100000; (exit 7)"
    result = backend.execute_with_offload(command, "/etc/nowhere/x", max_inline_bytes=5000)
    assert not result.offloaded
    assert (result.response.exit_code, result.response.truncated) == (7, True)
    text = result.response.output
    assert text.startswith("1\n2\n")
    assert "\n100000\n" in text
    assert "cannot save the full output" in text
    assert len(text) < 5500


def test_output_over_the_cap_is_cut_and_says_so(backend: SandlotBackend) -> None:
    path = "/large_tool_results/capped"
    result = backend.execute_with_offload(
        "seq 1 100000", path, max_inline_bytes=100, max_capture_bytes=50_000
    )
    assert (result.offloaded, result.response.truncated, result.response.exit_code) == (True, True, 0)
    (kept,) = backend.download_files([path])
    assert kept.content is not None
    assert 49_990 < len(kept.content) <= 50_000
    assert kept.content.startswith(b"1\n2\n")
    assert kept.content.endswith(b"\n100000\n")
    assert " bytes left out …]\n".encode() in kept.content
    assert "\n100000" in result.response.output
    assert [info["path"] for info in backend.ls("/large_tool_results").entries or []] == [path]
    assert [info["path"] for info in backend.glob("capped", "/large_tool_results").matches or []] == [path]


def test_what_is_for_a_terminal_is_not_for_a_model(backend: SandlotBackend) -> None:
    command = r"printf '\033[31mred\033[0m\r\n'"
    assert backend.execute(command).output == "\x1b[31mred\x1b[0m\r\n"
    told = backend.execute_with_offload(command, "/large_tool_results/x", max_inline_bytes=1000)
    assert told.response.output == "red\n"


def test_its_id_is_the_conversation_and_asking_makes_nothing(client: Client, thread: str) -> None:
    assert SandlotBackend(client, thread=thread).id == thread
    assert SandlotBackend(client, thread=thread, name="part").id.startswith(f"{thread}/part~")
    assert SandlotBackend(client).id == "sandlot"
    assert list(client.sessions(thread=thread)) == []


async def test_mistakes_of_the_program_are_raised(agent_server: ServerProcess, client: Client) -> None:
    with pytest.raises(InvalidRequest, match="thread_id"):
        await SandlotBackend(client).als("/")
    with pytest.raises(InvalidRequest, match="nowhere"):
        await SandlotBackend(client, environment="nowhere", thread="t").als("/")
    async with AsyncClient(agent_server.url) as async_client:
        with pytest.raises(InvalidRequest, match=r"sandlot\.Client"):
            SandlotBackend(async_client, thread="t").ls("/")


def test_a_server_that_is_not_there_is_an_answer(client: Client) -> None:
    with Client("http://127.0.0.1:9") as nobody:
        backend = SandlotBackend(nobody, thread="t")
        assert backend.execute("echo").exit_code is None
        assert "unavailable" in backend.execute("echo").output
        (response,) = backend.download_files(["/workspace/x"])
        assert "unavailable" in (response.error or "")

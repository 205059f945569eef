"""Commands find the server of this machine by themselves, and say which one they use."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.unit.cli.conftest import KEY, SANDLOT, SECONDS, Served, environment

from sandlot.cli import discovery
from sandlot.cli.terminal import display
from sandlot.config.announcement import NAME, announce, read_announcement

pytestmark = pytest.mark.slow  # each case starts a process of its own

LOCALLY = "sandlot: No server found; running locally with Docker."
USING = re.compile(
    r"sandlot: Using the server at http://127\.0\.0\.1:\d+ \(started (just now|\d+ seconds? ago)\)\.\n"
)
Start = Callable[..., subprocess.Popen[str]]


def run(
    folder: Path, *arguments: str, code: int = 0, progress: bool = False, **variables: str
) -> subprocess.CompletedProcess[str]:
    """A command without a URL. It cannot reach any engine, so that local mode always fails.

    ``progress``: keep the lines about steps that take over a second. On a busy machine any step may.
    """
    variables = {"SANDLOT_DATA_DIR": str(folder), "DOCKER_HOST": "unix:///none.sock", **variables}
    ran = subprocess.run(
        [*SANDLOT, *arguments], capture_output=True, text=True, timeout=SECONDS, env=environment(**variables)
    )
    assert ran.returncode == code, (ran.returncode, ran.stdout, ran.stderr)
    assert "Traceback" not in ran.stderr
    if not progress:
        ran.stderr = re.sub(r"(?m)^sandlot: (Waiting for|Creating) .*\n", "", ran.stderr)
    return ran


@pytest.fixture
def start(short_tmp: Path) -> Iterator[Start]:
    """Starts a server in this test's data folder, as a process of its own."""
    started: list[subprocess.Popen[str]] = []

    def one(key: str = "", worker_id: str = "fake") -> subprocess.Popen[str]:
        program = Path(__file__).parent / "announced_server.py"
        process = subprocess.Popen(
            [sys.executable, program, short_tmp, key, worker_id],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "announced\n"
        return process

    yield one
    for process in started:
        process.kill()
        process.communicate(timeout=SECONDS)


class Recorder(BaseHTTPRequestHandler):
    """Answers /health with a name of its choice, and records everything that it is sent."""

    name: object = "stranger"
    seen: list[tuple[str, dict[str, str]]]

    def do_GET(self) -> None:
        self.seen.append((self.path, dict(self.headers)))
        body = json.dumps({"worker_id": self.name}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def stranger() -> Iterator[tuple[str, type[Recorder]]]:
    handler = type("Handler", (Recorder,), {"seen": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", handler
        server.shutdown()
        thread.join(SECONDS)


# --- a server is found ------------------------------------------------------------------------


def test_run_uses_the_server_and_says_so(start: Start, short_tmp: Path) -> None:
    start()
    ran = run(short_tmp, "run", "echo out; echo err >&2; exit 3", code=3)
    assert ran.stdout == "out\n"
    said, _, rest = ran.stderr.partition("\n")
    assert USING.fullmatch(f"{said}\n")
    assert rest == "err\n"


@pytest.mark.parametrize("option", ["--json", "-q", "--quiet"])
def test_it_says_nothing_if_asked_not_to(start: Start, short_tmp: Path, option: str) -> None:
    start()
    assert run(short_tmp, "run", option, "echo out").stderr == ""


def test_other_commands_find_it_too(start: Start, short_tmp: Path) -> None:
    start(key=KEY)
    found = {"SANDLOT_API_KEY": KEY}
    run(short_tmp, "run", "-q", "--thread", "talk", "echo kept > note", **found)
    listed = run(short_tmp, "sessions", "list", "--json", **found)
    assert [session["thread"] for session in json.loads(listed.stdout)] == ["talk"]
    assert listed.stderr == ""
    assert run(short_tmp, "files", "cat", "--thread", "talk", "note", **found).stdout == "kept\n"
    assert run(short_tmp, "exec", "--thread", "talk", "cat note", **found).stdout == "kept\n"
    assert "base" in run(short_tmp, "env", "list", **found).stdout


def test_a_refusal_is_an_error_that_names_the_server(start: Start, short_tmp: Path) -> None:
    start(key=KEY)
    for variables in ({}, {"SANDLOT_API_KEY": "not-the-key-at-all"}):
        for command in (["run", "--json", "true"], ["sessions", "list"]):
            told = run(short_tmp, *command, code=1, **variables).stderr
            assert re.match(r"sandlot: The server at http://127\.0\.0\.1:\d+ refused this command: \S", told)
            assert "--api-key" in told
            assert "locally" not in told


def test_an_environment_that_the_server_lacks_is_an_error(start: Start, short_tmp: Path) -> None:
    """Local mode has it, with or without its tier. It is never asked."""
    start()
    told = run(short_tmp, "run", "--environment", "gvisor", "true", code=1).stderr
    assert USING.match(told)
    assert "Unknown environment 'gvisor'" in told
    assert "locally" not in told


def test_a_named_server_wins(start: Start, short_tmp: Path, served: Served) -> None:
    start()
    ran = run(short_tmp, "run", "echo out", SANDLOT_URL=served.url, SANDLOT_API_KEY=KEY)
    assert (ran.stdout, ran.stderr) == ("out\n", "")
    unreachable = run(short_tmp, "--url", "http://127.0.0.1:1", "sessions", "list", code=1)
    assert "Cannot connect to http://127.0.0.1:1" in unreachable.stderr


def test_local_forces_local_mode(start: Start, short_tmp: Path) -> None:
    start()
    told = run(short_tmp, "run", "--local", "true", code=1).stderr
    assert "Using the server" not in told
    assert "none.sock" in told


def test_an_empty_url_is_none(start: Start, short_tmp: Path) -> None:
    start()
    assert run(short_tmp, "run", "-q", "echo out", SANDLOT_URL="").stdout == "out\n"


def test_a_near_miss_of_the_url_is_an_error(start: Start, short_tmp: Path) -> None:
    start()
    for command in (["run", "true"], ["sessions", "list"]):
        told = run(short_tmp, *command, code=1, SANDLOT_URLS="http://127.0.0.1:1").stderr
        assert "Did you mean SANDLOT_URL?" in told


# --- no server is found -----------------------------------------------------------------------


def test_without_a_server_run_is_local_and_says_so(short_tmp: Path) -> None:
    told = run(short_tmp, "run", "true", code=1).stderr
    assert told.startswith(LOCALLY)
    assert "none.sock" in told
    quiet = run(short_tmp, "run", "-q", "true", code=1).stderr
    assert "locally" not in quiet
    assert "none.sock" in quiet


@pytest.mark.parametrize(
    "command", [["sessions", "list"], ["exec", "ses_1", "true"], ["shell", "--session", "x"]]
)
def test_without_a_server_other_commands_say_what_to_do(short_tmp: Path, command: list[str]) -> None:
    told = run(short_tmp, *command, code=1).stderr
    assert told.startswith("sandlot: No server found on this machine. ")
    assert "--url" in told
    assert len(told.splitlines()) == 1


def test_fleet_commands_need_a_coordinators_address(start: Start, short_tmp: Path) -> None:
    start()
    told = run(short_tmp, "fleet", "status", code=1, SANDLOT_API_KEY=KEY).stderr
    assert (
        told
        == "sandlot: Name a coordinator of the fleet: sandlot --url URL fleet COMMAND, or set SANDLOT_URL.\n"
    )


def test_a_stopped_server_leaves_nothing(start: Start, short_tmp: Path) -> None:
    process = start()
    run(short_tmp, "env", "list")  # it answers, so it also handles signals
    assert read_announcement(short_tmp) is not None
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 0
    assert not (short_tmp / NAME).exists()
    assert run(short_tmp, "run", "true", code=1).stderr.startswith(LOCALLY)


def test_a_killed_server_is_ignored(start: Start, short_tmp: Path) -> None:
    process = start()
    process.kill()
    process.wait(SECONDS)
    assert (short_tmp / NAME).exists()
    assert run(short_tmp, "run", "true", code=1).stderr.startswith(LOCALLY)
    start()
    assert USING.match(run(short_tmp, "run", "true").stderr)


def test_without_the_servers_packages_both_ways_are_named(short_tmp: Path) -> None:
    code = (
        "import sys\n"
        "for name in ('pydantic_settings', 'yaml', 'aiodocker', 'uvicorn', 'fastapi'): sys.modules[name] = None\n"
        "from sandlot.cli.main import main\n"
        "main()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, "run", "true"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=environment(SANDLOT_DATA_DIR=str(short_tmp)),
    )
    assert ran.returncode == 1
    assert ran.stderr.startswith("sandlot: No server was found, and running locally needs ")
    assert "pip install '.[server]'" in ran.stderr


# --- the key goes nowhere else ----------------------------------------------------------------


def told_and_seen(
    folder: Path, stranger: tuple[str, type[Recorder]], *command: str
) -> tuple[str, list[tuple[str, dict[str, str]]]]:
    told = run(folder, *command, code=1, SANDLOT_API_KEY=KEY).stderr
    seen = stranger[1].seen
    assert KEY not in json.dumps(seen)
    return told, seen


def test_another_program_at_the_announced_place_gets_no_key(
    short_tmp: Path, stranger: tuple[str, type[Recorder]]
) -> None:
    announce(short_tmp, stranger[0], "worker-1")
    for command in (["run", "true"], ["run", "--json", "true"], ["sessions", "list"]):
        told, seen = told_and_seen(short_tmp, stranger, *command)
        assert told.startswith(f"sandlot: Another program answers at {stranger[0]} in place of the server")
        assert "locally" not in told
    assert {path for path, _ in seen} == {"/health"}


def test_an_announcement_that_cannot_be_trusted_is_not_even_followed(
    short_tmp: Path, stranger: tuple[str, type[Recorder]]
) -> None:
    stranger[1].name = "worker-1"
    announce(short_tmp, stranger[0], "worker-1")
    (short_tmp / NAME).chmod(0o666)
    told, seen = told_and_seen(short_tmp, stranger, "sessions", "list")
    assert told.startswith("sandlot: No server found on this machine. ")
    assert seen == []
    (short_tmp / NAME).chmod(0o600)
    if os.geteuid() == 0:
        os.chown(short_tmp / NAME, 65534, 65534)
        assert told_and_seen(short_tmp, stranger, "sessions", "list") == (told, [])


def test_proxies_are_not_asked(start: Start, short_tmp: Path, stranger: tuple[str, type[Recorder]]) -> None:
    start(worker_id="not-the-name-of-the-fake")
    told = run(short_tmp, "run", "true", code=1, HTTP_PROXY=stranger[0], http_proxy=stranger[0]).stderr
    assert "Another program answers" in told
    assert stranger[1].seen == []


def test_a_server_that_hangs_is_an_error(start: Start, short_tmp: Path) -> None:
    process = start()
    process.send_signal(signal.SIGSTOP)
    try:
        told = run(short_tmp, "run", "true", code=1, progress=True, SANDLOT_API_KEY=KEY).stderr
    finally:
        process.send_signal(signal.SIGCONT)
    assert "sandlot: Waiting for the server at http://127.0.0.1:" in told
    assert "is running, but does not answer" in told
    assert "locally" not in told


@pytest.mark.parametrize("name", [None, 3, ["x"], "x" * discovery.MAX_HEALTH_BYTES])
async def test_what_is_no_name_is_no_server(stranger: tuple[str, type[Recorder]], name: object) -> None:
    stranger[1].name = name
    assert await discovery._name_of_server(stranger[0], SECONDS) is None


async def test_a_server_without_an_announcement_is_only_a_hint(
    stranger: tuple[str, type[Recorder]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "DEFAULT_URL", stranger[0])
    assert f"sandlot --url {stranger[0]} COMMAND" in await discovery.unannounced_server()
    monkeypatch.setattr(discovery, "DEFAULT_URL", "http://127.0.0.1:1")
    assert await discovery.unannounced_server() == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "just now"), (0, "just now"), (1, "1 second ago"), (59, "59 seconds ago"), (60, "1 minute ago"),
     (300, "5 minutes ago"), (7300, "2 hours ago"), (90_000, "1 day ago")],
)  # fmt: skip
def test_ago(seconds: int, text: str) -> None:
    assert display.ago(time.time() - seconds) == text

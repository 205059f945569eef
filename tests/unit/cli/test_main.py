"""What needs no server: help, version, missing packages, images, the scripts beside the code."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.conftest import SANDLOT, SECONDS, environment, needs
from typer.core import TyperGroup, TyperOption
from typer.main import get_command
from typer.testing import CliRunner

from sandlot.cli.main import app, report
from sandlot.cli.terminal import attach, display
from sandlot.client.async_exec import AsyncExec
from sandlot.client.http.transport.errors import unreachable
from sandlot.config.reading import server_settings
from sandlot.domain.errors import (
    UNREACHABLE,
    Busy,
    Conflict,
    LinkInterrupted,
    NotFound,
    SandlotError,
    Unavailable,
)
from sandlot.domain.execution import Channel, ExecEvent, Exited, Output
from sandlot.domain.service import ExecStatus
from sandlot.domain.text.printable import escape_unprintable
from sandlot.wiring.http import listen

pytestmark = pytest.mark.slow  # each case starts a process of its own


def run(*arguments: str, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    ran = subprocess.run(
        [*SANDLOT, *arguments], capture_output=True, text=True, timeout=SECONDS, env=environment(**variables)
    )
    assert ran.returncode == code, (ran.returncode, ran.stdout, ran.stderr)
    return ran


def test_every_command_has_help() -> None:
    runner = CliRunner()
    top = runner.invoke(app, ["--help"])
    assert top.exit_code == 0
    for command in (
        "run", "exec", "shell", "serve", "doctor", "version", "sessions list", "sessions show", "sessions delete",
        "sessions extend", "sessions recreate", "files ls", "files cat", "files put", "files get", "files rm",
        "env list", "env show", "env reload", "registry list", "registry check", "images build", "worker",
        "worker drain",
    ):  # fmt: skip
        assert command.split()[0] in top.stdout
        shown = runner.invoke(app, [*command.split(), "--help"])
        assert shown.exit_code == 0, command
        assert len(shown.stdout.splitlines()) > 4


def test_help_lists_every_command_with_a_whole_sentence() -> None:
    def check(group: TyperGroup) -> None:
        for command in group.commands.values():
            summary = (command.help or "").splitlines()[0]
            assert summary.endswith("."), command.name
            assert len(summary) <= 50, command.name
            if isinstance(command, TyperGroup):
                check(command)

    root = get_command(app)
    assert isinstance(root, TyperGroup)
    check(root)
    assert "..." not in CliRunner().invoke(app, ["--help"]).stdout.partition("Commands:")[2]


def test_help_names_values_in_upper_case_and_options_in_lower_case() -> None:
    def check(command: Any) -> None:
        for parameter in command.params:
            if parameter.name in ("install_completion", "show_completion"):
                continue  # typer's own
            if isinstance(parameter, TyperOption):
                # Typer takes a metavar that equals the name for the option's name: --THREAD.
                names = [name for name in parameter.opts if name.startswith("--")]
                assert names == [name.lower() for name in names]
            if not getattr(parameter, "is_flag", False):
                assert parameter.metavar, (command.name, parameter.name)
                assert parameter.metavar == parameter.metavar.upper()
        for below in getattr(command, "commands", {}).values():
            check(below)

    check(get_command(app))


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from sandlot.cli.main import main\n"
        "sys.argv = ['sandlot', '--help']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'httpx', 'pydantic', 'fastapi', 'aiodocker', 'rich', 'yaml', 'msgspec', 'websockets'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stderr.strip() == "[]"


def test_help_answers_at_once() -> None:
    """It takes little longer than Python with the library that prints it."""

    def seconds(start: Callable[[], object]) -> float:
        begin = time.perf_counter()
        start()
        return time.perf_counter() - begin

    def library() -> None:
        subprocess.run([sys.executable, "-c", "import typer"], check=True)

    pairs = [(seconds(lambda: run("--help")), seconds(library)) for _ in range(5)]
    # The quickest of each: the others met a busy machine.
    assert min(ours for ours, _ in pairs) < 6 * min(bare for _, bare in pairs), pairs


def test_version() -> None:
    import sandlot

    assert run("version").stdout.startswith(f"sandlot {sandlot.__version__} ")
    assert run("--version").stdout == run("version").stdout  # U13


@pytest.mark.parametrize(
    "command", [["serve"], ["doctor"], ["run", "--local", "true"], ["registry", "check", "."]]
)
def test_without_the_servers_packages_it_says_how_to_install_them(command: list[str]) -> None:
    code = (
        "import sys\n"
        "for name in ('pydantic_settings', 'yaml', 'aiodocker', 'uvicorn', 'fastapi'): sys.modules[name] = None\n"
        "from sandlot.cli.main import main\n"
        "main()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, *command],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=environment(),
    )
    assert ran.returncode == 1
    assert "pip install '.[server]'" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_an_empty_command_is_called_so() -> None:
    for command in (["run", ""], ["run", "", "x"], ["exec", "ses_1", ""]):
        assert run(*command, code=1).stderr == "sandlot: The command is empty.\n"


def test_a_second_local_program_is_told_what_to_do(short_tmp: Path) -> None:
    (short_tmp / "docker").mkdir()
    with (short_tmp / "docker/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ran = run(
            "run", "--local", "true", code=1, SANDLOT_DATA_DIR=str(short_tmp), SANDLOT_WORKER_ID="test-cli"
        )
    assert "Another worker is using the data folder" in ran.stderr
    assert "one program at a time" in ran.stderr  # U6
    assert "`sandlot serve`" in ran.stderr
    assert "SANDLOT_DATA_DIR" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("host", ["unix:///none.sock", "tcp://127.0.0.1:1", "nonsense"])
def test_u7_an_engine_that_cannot_be_reached_is_named(short_tmp: Path, host: str) -> None:
    ran = run("run", "--local", "true", code=1, SANDLOT_DATA_DIR=str(short_tmp), DOCKER_HOST=host)
    assert host in ran.stderr
    assert "DOCKER_HOST" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_serve_refuses_an_open_door() -> None:
    ran = run("serve", "--host", "0.0.0.0", code=1)
    assert "SANDLOT_API_KEY" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_help_of_a_workers_command_needs_no_fleet() -> None:
    assert "take no new sessions" in run("worker", "drain", "--help").stdout


def test_a_worker_that_does_not_run_cannot_be_drained(short_tmp: Path) -> None:
    told = run("worker", "drain", code=1, SANDLOT_DATA_DIR=str(short_tmp)).stderr
    assert f"No worker runs with the data folder {short_tmp}" in told


def test_settings_of_version_0_2_are_named(short_tmp: Path) -> None:
    for member in ("worker", "coordinator"):
        told = run(
            member, code=1, SANDLOT_DATA_DIR=str(short_tmp), SANDLOT_FLEET_KEYS="k1:" + "5" * 64
        ).stderr
        assert "SANDLOT_FLEET_KEYS is a setting of version 0.2" in told
        assert "5" * 20 not in told


def test_a_taken_port_and_an_address_of_another_machine_are_told_apart() -> None:
    def told(host: str, port: int) -> str:
        with pytest.raises(Conflict, match="Cannot listen") as caught:
            listen(server_settings(host=host, port=port, api_key="a-key-for-the-tests"))
        return caught.value.message

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "Is another server running there?" in told("127.0.0.1", port)
    elsewhere = told("192.0.2.1", port)
    assert "Is another server running there?" not in elsewhere
    assert "an address of this machine" in elsewhere


def test_registry_check_needs_no_key(tmp_path: Path) -> None:
    (tmp_path / "environments").mkdir()
    assert "environment\tbase" in run("registry", "check", str(tmp_path), SANDLOT_HOST="10.0.0.21").stdout


def test_registry_check_names_the_place(tmp_path: Path) -> None:
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments/x.yaml").write_text("name: x\ndescription: y\nimage: z\ntier: paper\n")
    ran = run("registry", "check", str(tmp_path), code=1)
    assert "environments/x.yaml: tier" in ran.stderr
    (tmp_path / "environments/x.yaml").write_text("name: x\ndescription: y\nimage: z\n")
    names = [
        e["name"]
        for e in json.loads(run("registry", "check", "--json", str(tmp_path)).stdout)["environments"]
    ]
    assert "x" in names


# --- images -----------------------------------------------------------------------------------


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(600)  # an engine with much to do takes minutes to build an image
def test_images_build() -> None:
    docker = "/usr/bin/docker" if os.path.exists("/usr/bin/docker") else "docker"
    repository = "sandlot-test-images"
    try:
        ran = subprocess.run(
            [*SANDLOT, "images", "build", "slim", "--repository", repository],
            capture_output=True,
            text=True,
            timeout=570,
            env=environment(),
        )
        assert ran.returncode == 0, ran.stderr
        assert f"Building {repository}/slim (1 of 1)." in ran.stderr
        subprocess.run([docker, "image", "inspect", f"{repository}/slim"], check=True, capture_output=True)
    finally:
        subprocess.run([docker, "rmi", f"{repository}/slim"], capture_output=True, check=False)


def test_an_image_that_is_not_shipped() -> None:
    assert "base, code, data-science, node" in run("images", "build", "windows", code=2).stderr


# --- display ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (512 * 1024**2, "512 MiB")],
)
def test_sizes(count: int, text: str) -> None:
    assert display.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.6, "1m"), (90, "1m30s"), (3600, "1h"), (5400, "1h30m"), (None, "never")],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert display.duration(seconds) == text


def test_harmless_text() -> None:
    assert escape_unprintable("plain ünïcode 文") == "plain ünïcode 文"
    assert escape_unprintable("\x1b[2J\n\u202e\udc80") == "\\x1b[2J\\n\\u202e\\udc80"


def test_json_carries_no_terminal_controls_and_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"name": "\x1b]0;x\x07 \x7f\x9b2J\u202e\U000e0001 ünï 文"}
    display.print_json(value)
    printed = capsys.readouterr().out
    assert json.loads(printed) == value
    assert "\\u009b2J" in printed
    assert "ünï 文" in printed
    assert all(char.isprintable() for char in printed.replace("\n", ""))


def test_fields_notes_and_errors_do_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b[2J\x9b1A\nsandlot: all is well"
    display.print_fields([(f"metadata {hostile}", hostile)])
    display.note(hostile)
    report(NotFound(f"there is no {hostile}", details={"request_id": hostile}))
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert "\x9b" not in out + err
    assert len(out.splitlines()) == 1
    assert len(err.splitlines()) == 3


@pytest.mark.parametrize(
    ("error", "beside"),
    [
        (
            unreachable("http://h:1", "refused"),
            "  To use another server: sandlot --url URL COMMAND, or set SANDLOT_URL.",
        ),
        (Unavailable("stopping", details={"reason": "stopping", "request_id": "req_1"}), "  request req_1"),
        # A coordinator's word about a worker that it does not reach.
        (Unavailable("cut off", details={"reason": UNREACHABLE, "request_id": "req_1"}), "  request req_1"),
        (Busy("all places are taken"), None),
    ],
)
def test_advice_is_given_where_it_helps(
    capsys: pytest.CaptureFixture[str], error: SandlotError, beside: str | None
) -> None:
    report(error)
    assert capsys.readouterr().err.splitlines()[1:] == ([beside] if beside else [])


# --- attach -----------------------------------------------------------------------------------


class Scripted(AsyncExec):
    """An exec whose line was cut: output is missing, and no input passes."""

    def __init__(self, *events: ExecEvent, running: bool = True) -> None:
        self._script = events
        self._running = running

    async def events(self, offset: int = 0) -> AsyncIterator[ExecEvent]:
        for event in self._script:
            yield event

    async def close_stdin(self) -> None:
        raise LinkInterrupted("the connection broke\x1b[2J")

    async def status(self, wait_s: float = 0) -> ExecStatus:
        return ExecStatus("exec", self._running)


async def test_output_that_is_missing_is_noted(capfd: pytest.CaptureFixture[str]) -> None:
    code = await attach._copy_output(
        Scripted(
            Output(Channel.STDOUT, 0, b"one\n"),
            Output(Channel.STDOUT, 4, b"two\n"),
            Output(Channel.STDOUT, 1008, b"three\n"),
            Exited(3, 0, "exited"),
        )
    )
    out, err = capfd.readouterr()
    assert (code, out, err) == (3, "one\ntwo\nthree\n", "sandlot: 1000 bytes of output were lost here.\n")


@pytest.mark.parametrize("running", [True, False])
async def test_input_that_does_not_pass_is_noted_while_the_command_runs(
    capfd: pytest.CaptureFixture[str], running: bool
) -> None:
    await attach._forward_input(Scripted(running=running))
    err = capfd.readouterr().err
    assert ("Could not forward stdin: the connection broke\\x1b[2J" in err) is running


async def test_a_failure_beside_the_output_does_not_steer_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with attach._background_tasks() as background:
        background(Scripted().close_stdin())
        await asyncio.sleep(0.01)
    assert capsys.readouterr().err == "sandlot: the connection broke\\x1b[2J\n"


# --- beside the code --------------------------------------------------------------------------


@pytest.mark.docker
def test_quickstart_looks_and_changes_nothing(root: Path) -> None:
    before = (root / ".venv").exists()
    ran = subprocess.run([root / "quickstart.sh", "--check"], capture_output=True, text=True, timeout=SECONDS)
    assert ran.returncode == 0, ran.stderr
    assert {line.split()[0] for line in ran.stdout.splitlines()} == {"python", "docker", "sandlot", "image"}
    assert (root / ".venv").exists() is before


def test_quickstart_says_what_is_missing(root: Path, tmp_path: Path) -> None:
    ran = subprocess.run(
        [root / "quickstart.sh", "--check"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={"PATH": os.environ["PATH"], "DOCKER_HOST": f"unix://{tmp_path}/none"},
    )
    assert ran.returncode == 1
    assert "the Docker engine does not answer" in ran.stderr
    assert subprocess.run([root / "quickstart.sh", "--what"], capture_output=True).returncode == 2


def test_u12_quickstart_uses_the_venv_of_the_tutorial_and_its_port(root: Path, tmp_path: Path) -> None:
    """With stand-ins for Python, pip and Docker: what is installed already is used, and nothing made beside it."""
    (tmp_path / "quickstart.sh").write_text(
        (root / "quickstart.sh").read_text().replace("/usr/bin/docker", "none")
    )
    stand_ins = tmp_path / "bin"
    for folder, name, text in (
        (stand_ins, "docker", "echo 27"),
        (tmp_path / ".venv/bin", "python", '[ "$1" != -m ] || exit 9'),
        (tmp_path / ".venv/bin", "sandlot", 'echo "ran: $*, port ${SANDLOT_PORT:-}"'),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    ran = subprocess.run(
        ["bash", tmp_path / "quickstart.sh"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={"PATH": f"{stand_ins}:{os.environ['PATH']}", "SANDLOT_PORT": "8123"},
    )
    assert ran.returncode == 0, ran.stderr
    assert "as it is installed in .venv" in ran.stdout
    assert f"SANDLOT_URL=http://127.0.0.1:8123 {tmp_path}/.venv/bin/sandlot run" in ran.stdout
    assert ran.stdout.endswith("ran: serve, port 8123\n")
    assert {path.name for path in tmp_path.iterdir()} == {"quickstart.sh", "bin", ".venv"}


async def test_u12_who_waits_is_told_what_for(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "SLOW_S", 0.02)
    with display.note_if_slow("not so slow"):
        await asyncio.sleep(0)
    with display.note_if_slow("preparing"):
        await asyncio.sleep(0.1)
    assert capfd.readouterr().err == "sandlot: preparing\n"


@needs("shellcheck")
def test_quickstart_is_clean(root: Path) -> None:
    subprocess.run(["shellcheck", root / "quickstart.sh"], check=True)


@needs("systemd-analyze")
def test_the_unit_is_valid(root: Path) -> None:
    ran = subprocess.run(
        ["systemd-analyze", "verify", root / "deploy/systemd/sandlot.service"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    # The program is not installed on the machine of the tests; all else must be in order.
    complaints = [line for line in ran.stderr.splitlines() if "is not executable" not in line]
    assert complaints == []

"""What needs no server: help, version, missing packages, images, the scripts beside the code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.unit.cli.conftest import SANDLOT, SECONDS, environment, needs
from typer.testing import CliRunner

from sandlot.cli import display
from sandlot.cli.main import app


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
        "env list", "env show", "registry list", "registry check", "images build",
    ):  # fmt: skip
        assert command.split()[0] in top.stdout
        shown = runner.invoke(app, [*command.split(), "--help"])
        assert shown.exit_code == 0, command
        assert len(shown.stdout.splitlines()) > 4


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
    def once() -> float:
        begin = time.perf_counter()
        run("--help")
        return time.perf_counter() - begin

    assert min(once() for _ in range(3)) < 1.0


def test_version() -> None:
    import sandlot

    assert run("version").stdout.startswith(f"sandlot {sandlot.__version__} ")


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
    assert "pip install 'sandlot[server]'" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_serve_refuses_an_open_door() -> None:
    ran = run("serve", "--host", "0.0.0.0", code=1)
    assert "SANDLOT_API_KEY" in ran.stderr
    assert "Traceback" not in ran.stderr


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
def test_images_build() -> None:
    docker = "/usr/bin/docker" if os.path.exists("/usr/bin/docker") else "docker"
    repository = "sandlot-test-images"
    try:
        ran = subprocess.run(
            [*SANDLOT, "images", "build", "slim", "--repository", repository],
            capture_output=True,
            text=True,
            timeout=170,
            env=environment(),
        )
        assert ran.returncode == 0, ran.stderr
        assert f"building {repository}/slim (1 of 1)" in ran.stderr
        subprocess.run([docker, "image", "inspect", f"{repository}/slim"], check=True, capture_output=True)
    finally:
        subprocess.run([docker, "rmi", f"{repository}/slim"], capture_output=True, check=False)


def test_an_image_that_is_not_shipped() -> None:
    assert "base, slim" in run("images", "build", "windows", code=2).stderr


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
    assert display.harmless("plain ünïcode 文") == "plain ünïcode 文"
    assert display.harmless("\x1b[2J\n\u202e\udc80") == "\\x1b[2J\\n\\u202e\\udc80"


# --- beside the code --------------------------------------------------------------------------


@pytest.mark.docker
def test_quickstart_looks_and_changes_nothing(root: Path) -> None:
    before = (root / ".quickstart").exists()
    ran = subprocess.run([root / "quickstart.sh", "--check"], capture_output=True, text=True, timeout=SECONDS)
    assert ran.returncode == 0, ran.stderr
    assert {line.split()[0] for line in ran.stdout.splitlines()} == {"python", "docker", "sandlot", "image"}
    assert (root / ".quickstart").exists() is before


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

"""Every step that takes long is named on stderr, as a plain line; stdout has the results alone."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.conftest import KEY, SANDLOT, SECONDS, Served, environment
from typer.testing import CliRunner

from sandlot.cli import images
from sandlot.cli.main import app
from sandlot.cli.terminal import display
from sandlot.client.async_client import AsyncClient
from sandlot.testing.fake import FakeService

pytestmark = pytest.mark.slow

Slow = Callable[..., Any]


def slowed(method: Slow) -> Slow:
    async def slow(*arguments: Any, **options: Any) -> Any:
        await asyncio.sleep(0.3)
        return await method(*arguments, **options)

    return slow


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "SLOW_S", 0.02)
    for name in ("create_session", "delete_session"):
        monkeypatch.setattr(FakeService, name, slowed(getattr(FakeService, name)))


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("options", [[], ["-q"], ["--json"]])
def test_run_names_its_slow_steps(
    served: Served, capfd: pytest.CaptureFixture[str], options: list[str]
) -> None:
    ran = CliRunner().invoke(app, ["--url", served.url, "--api-key", KEY, "run", *options, "true"])
    assert ran.exit_code == 0, ran.output
    said = ran.stderr + capfd.readouterr().err
    steps = ["Creating a sandbox.", "Deleting the sandbox."]
    assert [step for step in steps if f"sandlot: {step}" in said] == ([] if options else steps)
    assert "\x1b" not in said


@pytest.mark.parametrize("options", [[], ["-q"]])
def test_local_mode_names_its_slow_steps(
    short_tmp: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    """The worker is the shipped fake. Everything around it is what `sandlot run` uses."""

    async def open_fake(**_: Any) -> FakeService:
        await asyncio.sleep(0.3)
        return FakeService()

    monkeypatch.setattr(display, "SLOW_S", 0.02)
    monkeypatch.setattr("sandlot.wiring.local_service", open_fake)
    monkeypatch.setattr(FakeService, "close", slowed(FakeService.close))
    monkeypatch.setenv("SANDLOT_DATA_DIR", str(short_tmp))
    monkeypatch.delenv("SANDLOT_URL", raising=False)
    ran = CliRunner().invoke(app, ["run", *options, "--keep", "true"])
    assert ran.exit_code == 0, ran.output
    said = ran.stderr + capfd.readouterr().err
    steps = [
        "No server found; running locally with Docker.",
        "Starting a local worker.",
        "Stopping the local",
    ]
    assert [step for step in steps if f"sandlot: {step}" in said] == ([] if options else steps)
    assert "To open it again: sandlot shell --local --session ses_" in said
    assert "sessions delete" not in said


async def test_a_local_worker_is_stopped_if_the_command_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from sandlot.cli.connection import _local_client

    closed = []

    @asynccontextmanager
    async def failing() -> AsyncIterator[AsyncClient]:
        async with _local_client() as client:
            yield client
            raise RuntimeError("the command failed")

    async def open_fake(**_: Any) -> FakeService:
        return FakeService()

    async def close(self: FakeService) -> None:
        closed.append(self)

    monkeypatch.setattr("sandlot.wiring.local_service", open_fake)
    monkeypatch.setattr(FakeService, "close", close)
    with pytest.raises(RuntimeError, match="the command failed"):
        async with failing():
            pass
    assert len(closed) == 1


def test_serve_says_what_it_waits_for(short_tmp: Path) -> None:
    ran = subprocess.run(
        [*SANDLOT, "serve"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=environment(
            SANDLOT_DATA_DIR=str(short_tmp), SANDLOT_PORT="18737", DOCKER_HOST="unix:///none.sock"
        ),
    )
    assert ran.returncode == 1
    first, *_ = ran.stderr.splitlines()
    assert "starting: connecting to Docker" in first
    assert str(short_tmp) in first
    assert "none.sock" in ran.stderr
    assert ran.stdout == ""


@pytest.mark.parametrize("code", [0, 1])
def test_images_build_says_which_image_and_how_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\nexit {code}\n")
    docker.chmod(0o755)
    monkeypatch.setattr(images, "docker_command", lambda: str(docker))
    ran = CliRunner().invoke(app, ["images", "build", "--repository", "mine"])
    lines = ran.stderr.splitlines()
    assert lines[0] == "sandlot: Building mine/base (1 of 2)."
    if code:
        assert len(lines) == 1
        assert "mine/base" in str(ran.exception)
    else:
        assert lines[1].startswith("sandlot: Built mine/base in ")
        assert lines[2] == "sandlot: Building mine/slim (2 of 2)."
        assert len(lines) == 4
    assert ran.stdout == ""


@pytest.mark.parametrize(
    ("names", "built"),
    [
        ([], ["base", "slim"]),
        (["slim"], ["slim"]),
        (["node", "base", "data-science"], ["base", "node", "data-science"]),
    ],
)
def test_images_that_need_base_come_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], built: list[str]
) -> None:
    docker, calls = tmp_path / "docker", tmp_path / "calls"
    docker.write_text(f'#!/bin/sh\necho "$@" >>{calls}\n')
    docker.chmod(0o755)
    monkeypatch.setattr(images, "docker_command", lambda: str(docker))
    monkeypatch.setenv("SSL_CERT_FILE", "/etc/ca.pem")
    assert CliRunner().invoke(app, ["images", "build", "--repository", "mine", *names]).exit_code == 0
    ran = [line.split() for line in calls.read_text().splitlines()]
    assert [words[2] for words in ran] == [f"mine/{name}" for name in built]
    for words in ran:
        extra = words[3:-1]
        if words[2] in ("mine/base", "mine/slim"):
            assert extra == []
        else:
            assert extra == ["--build-arg=BASE=mine/base", "--secret=id=ca,src=/etc/ca.pem"]


def test_an_unknown_image() -> None:
    ran = CliRunner().invoke(app, ["images", "build", "datascience"])
    assert ran.exit_code == 2
    assert "Did you mean 'data-science'?" in " ".join(ran.stderr.split())

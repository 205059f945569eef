"""The engine's answers as errors of the domain, and the versions that are too old."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sandlot.domain import errors
from sandlot.providers.docker import engine_requirements
from sandlot.providers.docker.engine import Engine, _engine_call
from sandlot.providers.docker.engine_errors import translate
from sandlot.providers.docker.engine_requirements import runsc_version, warnings


@pytest.mark.parametrize(
    ("status", "message", "expected", "retryable"),
    [
        (900, "Cannot connect to Docker Engine via unix:///x", errors.EngineProblem, True),
        (404, "No such image: a:latest", errors.ImageMissing, False),
        (404, "No such container: x", errors.NotFound, False),
        (409, "Conflict. The container name is already in use", errors.Conflict, False),
        (400, "unknown or invalid runtime name: runsc", errors.TierMissing, False),
        (500, "write /var/lib/docker/x: no space left on device", errors.StorageFull, True),
        (500, "driver failed", errors.EngineProblem, True),
        (400, "bad parameter", errors.EngineProblem, False),
    ],
)
def test_translate(status: int, message: str, expected: type[errors.SandlotError], retryable: bool) -> None:
    error = translate("create container x", status, message)
    assert type(error) is expected
    assert error.retryable is retryable
    assert error.message.startswith("create container x: ")
    if status != 500 and message != "bad parameter":
        assert message in error.message


def test_s13_the_engines_own_words_are_for_the_log() -> None:
    words = "OCI runtime create failed: runc create failed: /var/lib/docker/overlay2/x: permission denied"
    for status, message in ((500, words), (400, words), (500, words + ": no space left on device")):
        error = translate("start container x", status, message)
        assert "OCI" not in error.message
        assert "/var/lib" not in error.message
        assert "start container x" in error.message


@pytest.mark.parametrize("host", ["nonsense", "ssh://me@host", "npipe:////x", "/var/run/docker.sock"])
def test_u7_an_address_that_cannot_be_one(host: str) -> None:
    with pytest.raises(
        errors.InvalidRequest, match="Set DOCKER_HOST to an address such as unix:///var/run/docker"
    ):
        Engine(host)


async def test_u7_an_error_without_text_is_named() -> None:
    with pytest.raises(errors.EngineProblem, match="BrokenPipeError"):
        async with _engine_call("version", 5):
            raise BrokenPipeError


def test_a_pull_that_finds_nothing_is_a_missing_image() -> None:
    error = translate("pull image a", 404, "pull access denied for a")
    assert isinstance(error, errors.ImageMissing)


@pytest.mark.parametrize(
    ("engine", "runc", "count"),
    [
        ("29.5.1", "1.3.3", 0),
        ("30.0", "1.4.0", 0),
        ("29.5.1", "1.2.8", 0),
        ("29.5.0", "1.2.9", 1),
        ("29.5.1", "1.2.7", 1),
        ("29.5.1", "1.3.2", 1),
        ("26.1.5+dfsg1", "1.1.15+ds1-2+b4", 2),
        ("", "", 2),
    ],
)
def test_floors(engine: str, runc: str, count: int) -> None:
    version = {"Version": engine, "Components": [{"Name": "Engine"}, {"Name": "runc", "Version": runc}]}
    assert len(warnings(version)) == count


# One that nobody could ask may be sound.
UNKNOWN_RUNSC = "cannot determine the version of runsc; check that it is 20250407 or newer"


@pytest.mark.parametrize(
    ("runsc", "warning"),
    [
        (None, None),  # none is registered
        ("runsc version release-20250407.0\nspec: 1.1.0-rc.1\n", None),
        ("runsc version release-20260105.0-3-gabcdef\n", None),
        ("runsc version 0.0~20240729.0\nspec: 1.2.0\n", "runsc 20240729 is older than 20250407"),
        ("runsc version release-20250331.0\n", "runsc 20250331 is older than 20250407"),
        ("runsc version VERSION_MISSING\n", UNKNOWN_RUNSC),
        ("", UNKNOWN_RUNSC),
    ],
)
def test_s14_floor_of_runsc(runsc: str | None, warning: str | None) -> None:
    sound = {"Version": "29.5.1", "Components": [{"Name": "runc", "Version": "1.3.3"}]}
    found = warnings(sound, runsc)
    assert len(found) == (warning is not None)
    assert all(one.startswith(str(warning)) for one in found)


async def test_s14_runsc_is_asked_for_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def registered(path: Path) -> dict[str, Any]:
        return {"Runtimes": {"runc": {"path": "runc"}, "runsc": {"path": str(path)}}}

    def program(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    assert await runsc_version({"Runtimes": {"runc": {"path": "runc"}}}) is None
    said = await runsc_version(registered(program("good", 'echo "runsc version release-20260105.0 $*"')))
    assert said == "runsc version release-20260105.0 --version\n"
    assert await runsc_version(registered(tmp_path / "missing")) == ""
    monkeypatch.setattr(engine_requirements, "RUNSC_SECONDS", 0.1)
    assert await runsc_version(registered(program("hangs", "exec sleep 60"))) == ""

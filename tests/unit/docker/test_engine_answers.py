"""The engine's answers as errors of the domain, and the versions that are too old."""

from __future__ import annotations

import pytest

from sandlot.domain import errors
from sandlot.providers.docker.engine import translate
from sandlot.providers.docker.floors import warnings


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
    assert message in error.message


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

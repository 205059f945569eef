"""E2B's code interpreter SDK with the shipped image ``code``: a plot, a table, and a state over fifty runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.code.conftest import declare, environment
from tests.docker.shipped import build_image
from tests.e2b.clients import NEWEST, Found, checks_in, run
from tests.e2b.conftest import E2B_KEY, SERVER_KEY
from tests.faults.rig import ServerProcess

pytestmark = [pytest.mark.docker, pytest.mark.images, pytest.mark.timeout(900)]

PROGRAM = "plot_calls.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    build_image("code")
    registry = declare(
        tmp_path_factory.mktemp("registry"),
        environment("base", image="sandlot/base"),
        environment("code", image="sandlot/code"),
    )
    server = ServerProcess(api_key=SERVER_KEY, registry=registry, queue_timeout_s="200")
    try:
        asyncio.run(server.start())
        yield run(NEWEST, PROGRAM, server.url, E2B_KEY)
    finally:
        asyncio.run(server.clean())


@pytest.mark.parametrize("check", checks_in(PROGRAM))
def test_plots(found: Found, check: str) -> None:
    found.assert_passed(check)

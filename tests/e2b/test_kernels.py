"""E2B's code interpreter SDK with real kernels: what ``test_code_interpreter`` proves on the fake, in a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.code.conftest import declare, environment, kernel_image
from tests.e2b.clients import NEWEST, Found, checks_in, run
from tests.e2b.conftest import E2B_KEY, SERVER_KEY
from tests.faults.rig import ServerProcess

pytestmark = pytest.mark.docker

PROGRAM = "kernel_calls.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Found]]:
    kernel_image()
    registry: Path = declare(tmp_path_factory.mktemp("registry"), environment("base"), environment("code"))
    server = ServerProcess(api_key=SERVER_KEY, registry=registry)
    try:
        asyncio.run(server.start())
        yield cache(lambda form: run(NEWEST, PROGRAM, server.url, E2B_KEY, form))
    finally:
        asyncio.run(server.clean())


@pytest.mark.parametrize("form", ["sync", "async"])
@pytest.mark.parametrize("check", checks_in(PROGRAM))
def test_kernels(found: Callable[[str], Found], form: str, check: str) -> None:
    found(form).assert_passed(check)

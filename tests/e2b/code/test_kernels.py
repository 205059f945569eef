"""E2B's code interpreter SDKs with real kernels: what ``test_code_interpreter`` proves on the fake, in a sandbox.

On a server of its own, there on gVisor too, and through a fleet's coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from sandlot.domain.e2b.names import key_for_e2b
from tests.code.conftest import declare, environment, kernel_image
from tests.e2b.clients import NEWEST, Found, checks_in, run, run_javascript
from tests.e2b.conftest import E2B_KEY, SERVER_KEY
from tests.faults.rig import ServerProcess
from tests.fleet_faults.rig import KEY, Fleet

pytestmark = pytest.mark.docker

PROGRAMS = {
    "sync": "code/kernel_calls.py",
    "async": "code/kernel_calls.py",
    "javascript": "code/kernel_calls.cjs",
}
FORMS = {
    "server": ("sync", "async", "javascript"),
    "gvisor": ("sync",),
    "coordinator": ("async", "javascript"),
}
CASES = [
    (front, form, check)
    for front, forms in FORMS.items()
    for form in forms
    for check in checks_in(PROGRAMS[form])
]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kernel_image()
    return declare(
        tmp_path_factory.mktemp("registry"),
        environment("base"),
        environment("code"),
        environment("gvisor-code", tier="runsc"),
    )


@pytest.fixture(scope="module")
def one_server(registry: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(api_key=SERVER_KEY, registry=registry)
    try:
        asyncio.run(server.start())
        yield server
    finally:
        asyncio.run(server.clean())


@pytest.fixture(scope="module")
def server(one_server: ServerProcess) -> Callable[[str], Found]:
    return cache(lambda form: found(form, one_server.url, E2B_KEY))


@pytest.fixture(scope="module")
def gvisor(one_server: ServerProcess) -> Callable[[str], Found]:
    return cache(lambda form: found(form, one_server.url, E2B_KEY, "gvisor-code"))


@pytest.fixture(scope="module")
def coordinator(registry: Path) -> Iterator[Callable[[str], Found]]:
    fleet = Fleet(workers=0, coordinators=0)
    fleet.workers = [fleet.new_worker(registry=registry)]
    fleet.coordinators = [fleet.new_coordinator(registry=registry)]
    try:
        asyncio.run(fleet.start())
        yield cache(lambda form: found(form, fleet.coordinators[0].url, key_for_e2b(KEY)))
    finally:
        asyncio.run(fleet.clean())


def found(form: str, url: str, key: str, template: str = "code") -> Found:
    if form == "javascript":
        return run_javascript(PROGRAMS[form], url, key)
    return run(NEWEST, PROGRAMS[form], url, key, form, template)


@pytest.mark.parametrize(("front", "form", "check"), CASES)
def test_kernels(request: pytest.FixtureRequest, front: str, form: str, check: str) -> None:
    request.getfixturevalue(front)(form).assert_passed(check)

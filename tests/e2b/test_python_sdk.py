"""E2B's Python SDK, unmodified from PyPI, against a real server. Each check of the programs is a test."""

from __future__ import annotations

from functools import cache

import pytest

from tests.e2b.clients import NEWEST, OLD, Found, checks_in, run
from tests.e2b.conftest import E2B_KEY
from tests.e2b.method_table import assert_all_called
from tests.faults.rig import ServerProcess

pytestmark = pytest.mark.docker

# In a version before 2.51, which speaks the first version of E2B's REST API.
NOT_IN_OLD = {
    "stream_input",
    "stream_input_of_a_pty",
    "octet_stream_and_gzip",
    "no_file_metadata",
    "lifecycle",
    "pause_keeps_no_memory",
    "idempotency_key",
    "network",
    "a_client_with_its_own_configuration",
    "nothing_is_ignored",
}


PYTHONS = {"newest": NEWEST, "old": OLD}
PROGRAMS = {
    "sync": ("sync/sandbox_calls.py", "sync/command_calls.py", "sync/file_calls.py", "git_calls.py"),
    "async": ("async_calls.py", "git_calls.py"),
}
CASES = [
    (version, flavour, program, check)
    for version in PYTHONS
    for flavour, programs in PROGRAMS.items()
    for program in programs
    for check in checks_in(program)
    if version == "newest" or check not in NOT_IN_OLD
]


class Runs:
    """What a version found out with a program. Each runs once, with the first of its tests."""

    def __init__(self, server: ServerProcess) -> None:
        self.of = cache(
            lambda version, flavour, program: run(PYTHONS[version], program, server.url, E2B_KEY, flavour)
        )

    def newest(self, flavour: str) -> list[Found]:
        return [self.of("newest", flavour, program) for program in PROGRAMS[flavour]]


@pytest.fixture(scope="module")
def runs(e2b_server: ServerProcess) -> Runs:
    return Runs(e2b_server)


@pytest.mark.parametrize(("version", "flavour", "program", "check"), CASES)
def test_sdk(runs: Runs, version: str, flavour: str, program: str, check: str) -> None:
    runs.of(version, flavour, program).assert_passed(check)


@pytest.mark.parametrize("flavour", PROGRAMS)
def test_each_method_that_works_is_called(runs: Runs, flavour: str) -> None:
    assert_all_called(__file__, flavour, runs.newest(flavour))


@pytest.mark.parametrize("flavour", PROGRAMS)
def test_the_newest_sdk_makes_many_calls(runs: Runs, flavour: str) -> None:
    assert sum(sum(found.calls.values()) for found in runs.newest(flavour)) >= 80

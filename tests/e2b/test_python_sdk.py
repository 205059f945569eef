"""E2B's Python SDK, unmodified from PyPI, against a real server. Each check of the programs is a test."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from tests.e2b.clients import NEWEST, OLD, Found, checks_in, run
from tests.e2b.conftest import E2B_KEY
from tests.faults.rig import ServerProcess

pytestmark = pytest.mark.docker

# In a version before 2.51, which speaks the first version of E2B's REST API.
NOT_IN_OLD = {
    "stream_input",
    "octet_stream_and_gzip",
    "no_file_metadata",
    "lifecycle",
    "pause_keeps_no_memory",
    "idempotency_key",
    "network",
    "nothing_is_ignored",
}


PYTHONS = {"newest": NEWEST, "old": OLD}
PROGRAMS = ("sync_calls.py", "async_calls.py")
CASES = [
    (version, program, check)
    for version in PYTHONS
    for program in PROGRAMS
    for check in checks_in(program)
    if version == "newest" or check not in NOT_IN_OLD
]


@pytest.fixture(scope="module")
def found(e2b_server: ServerProcess) -> Callable[[str, str], Found]:
    """What a version found out with a program. Each runs once, with the first of its tests."""
    return cache(lambda version, program: run(PYTHONS[version], program, e2b_server.url, E2B_KEY))


@pytest.mark.parametrize(("version", "program", "check"), CASES)
def test_sdk(found: Callable[[str, str], Found], version: str, program: str, check: str) -> None:
    found(version, program).assert_passed(check)


@pytest.mark.parametrize(("program", "calls"), [("sync_calls.py", 80), ("async_calls.py", 60)])
def test_the_newest_sdk_makes_many_calls(
    found: Callable[[str, str], Found], program: str, calls: int
) -> None:
    assert sum(found("newest", program).calls.values()) >= calls

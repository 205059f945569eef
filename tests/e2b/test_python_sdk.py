"""E2B's Python SDK, unmodified from PyPI, against a real server. Each check of the programs is a test."""

from __future__ import annotations

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


@pytest.fixture(scope="module")
def newest(e2b_server: ServerProcess) -> Found:
    return run(NEWEST, "sync_calls.py", e2b_server.url, E2B_KEY)


@pytest.fixture(scope="module")
def old(e2b_server: ServerProcess) -> Found:
    return run(OLD, "sync_calls.py", e2b_server.url, E2B_KEY)


@pytest.mark.parametrize("check", checks_in("sync_calls.py"))
def test_newest_sync_sdk(newest: Found, check: str) -> None:
    assert newest.checks[check] == ""


@pytest.mark.parametrize("check", [name for name in checks_in("sync_calls.py") if name not in NOT_IN_OLD])
def test_old_sync_sdk(old: Found, check: str) -> None:
    assert old.checks[check] == ""


def test_the_sync_sdk_makes_many_calls(newest: Found) -> None:
    assert sum(newest.calls.values()) >= 80

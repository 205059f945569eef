"""The core of E2B's SDK on gVisor, with the newest SDK."""

from __future__ import annotations

import pytest

from tests.e2b.clients import NEWEST, Found, checks_in, run
from tests.e2b.conftest import E2B_KEY
from tests.faults.rig import ServerProcess

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def found(e2b_server: ServerProcess) -> Found:
    return run(NEWEST, "gvisor_calls.py", e2b_server.url, E2B_KEY)


@pytest.mark.parametrize("check", checks_in("gvisor_calls.py"))
def test_gvisor(found: Found, check: str) -> None:
    found.assert_passed(check)

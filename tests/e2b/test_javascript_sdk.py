"""E2B's JavaScript SDK, unmodified from npm, against a real server. Each check of the program is a test."""

from __future__ import annotations

import pytest

from tests.e2b.clients import Found, checks_in, run_javascript
from tests.e2b.conftest import E2B_KEY
from tests.faults.rig import ServerProcess

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def found(e2b_server: ServerProcess) -> Found:
    return run_javascript("js_calls.cjs", e2b_server.url, E2B_KEY)


@pytest.mark.parametrize("check", checks_in("js_calls.cjs"))
def test_javascript_sdk(found: Found, check: str) -> None:
    found.assert_passed(check)


def test_it_makes_many_calls(found: Found) -> None:
    assert len(found.calls) >= 25
    assert sum(found.calls.values()) >= 60

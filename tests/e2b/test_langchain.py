"""``langchain-e2b``, unmodified: the backend with which Deep Agents use E2B."""

from __future__ import annotations

import pytest

from tests.e2b.clients import LANGCHAIN, Found, checks_in, run
from tests.e2b.conftest import E2B_KEY
from tests.faults.rig import ServerProcess

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def found(e2b_server: ServerProcess) -> Found:
    return run(LANGCHAIN, "langchain_calls.py", e2b_server.url, E2B_KEY)


@pytest.mark.parametrize("check", checks_in("langchain_calls.py"))
def test_langchain_e2b(found: Found, check: str) -> None:
    found.assert_passed(check)

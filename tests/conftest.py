"""A run that leaves anything behind fails: containers, volumes, mounts, sockets, processes, tasks."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import structlog
from hypothesis import HealthCheck, settings

from tests import leaks

pytest_plugins = ["tests.gate.plugin"]
pytest.register_assert_rewrite("sandlot.testing")
# A loaded machine is not a failure: hypothesis would count a pause of 0.2 s in an example as one.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# For the gate: the same examples in each run of the same source. `make check-all` tries new ones.
settings.register_profile("gate", settings.get_profile("unhurried"), derandomize=True)
settings.load_profile("unhurried")

TASKS_SECONDS = 10.0  # what was cancelled or dropped has its last steps to do
BEFORE = pytest.StashKey[set[str]]()


# Also set where a test itself runs pytest: such a run shares the machine with the other processes' tests.
AMONG_OTHERS = "PYTEST_XDIST_WORKER"


def pytest_sessionstart(session: pytest.Session) -> None:
    if AMONG_OTHERS not in os.environ:
        session.config.stash[BEFORE] = leaks.on_the_machine()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Once, when every test process has ended: they all use the same machine."""
    if AMONG_OTHERS not in os.environ:
        left = leaks.left_since(session.config.stash[BEFORE], leaks.on_the_machine)
        session.config.stash[leaks.LEFT] = left
        if left:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if left := config.stash.get(leaks.LEFT, None):
        terminalreporter.section("the run left behind", red=True)
        for what in sorted(left):
            terminalreporter.line(what)


@pytest.fixture
def logged() -> Iterator[list[structlog.typing.EventDict]]:
    """Everything that is logged, at every level.

    A local session sets the level of its whole process to warnings, also for the tests after it.
    """
    configured, level = structlog.is_configured(), structlog.get_config()["wrapper_class"]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(0))
    try:
        with structlog.testing.capture_logs() as events:
            yield events
    finally:
        structlog.configure(wrapper_class=level)
        if not configured:
            structlog.reset_defaults()


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's name, which ``tmp_path`` does not in every process."""
    path = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def no_processes_left_behind() -> Iterator[None]:
    before = leaks.child_processes()
    yield
    gc.collect()  # an ApprovalPolicy ends its process when it goes, and LangGraph keeps its objects in cycles
    left = leaks.left_since(before, leaks.child_processes)
    assert not left, "the run left behind: " + "; ".join(sorted(left))


def unfinished() -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and not task.done()]


@pytest_asyncio.fixture(scope="session", loop_scope="session", autouse=True)
async def no_tasks_left_behind() -> AsyncIterator[None]:
    yield
    deadline = time.monotonic() + TASKS_SECONDS
    while (left := unfinished()) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert not left, f"tasks left behind: {left}"

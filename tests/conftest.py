"""A run that leaves anything behind fails: containers, volumes, mounts, sockets, processes, tasks."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("sandlot.testing")
# A loaded machine is not a failure: hypothesis would count a pause of 0.2 s in an example as one.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

SETTLE_SECONDS = 90.0  # the engine removes what it was told to remove later, and a busy one much later
TASKS_SECONDS = 10.0  # what was cancelled or dropped has its last steps to do
OWNER_PREFIX = "test-"  # every provider in the tests has an owner that begins so


def docker_json(*arguments: str) -> list[dict[str, object]]:
    """What the docker command lists, one JSON object a line; nothing where there is no engine."""
    client = "/usr/bin/docker" if os.path.exists("/usr/bin/docker") else "docker"
    try:
        ran = subprocess.run(
            [client, *arguments, "--format", "{{json .}}"],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return []
    return [json.loads(line) for line in ran.stdout.splitlines()]


def ours(labels: object) -> bool:
    return f"sandlot.owner={OWNER_PREFIX}" in str(labels)


def left_behind() -> set[str]:
    """Names of everything that a test could leave on this machine."""
    found = {f"container {row['Names']}" for row in docker_json("ps", "-a") if ours(row["Labels"])}
    found |= {f"volume {row['Name']}" for row in docker_json("volume", "ls") if ours(row["Labels"])}
    me = os.getpid()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        if int(fields[1]) == me and fields[0] != "Z" and "docker" not in command.split(" ")[0]:
            found.add(f"process {stat.parent.name} {command}")
    for line in Path("/proc/net/unix").read_text().splitlines():
        if "/sandlot-test-" in line:
            found.add(f"socket {line.split()[-1]}")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        if "/sandlot-test-" in line:
            found.add(f"mount {line.split()[1]}")
    return found


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    before = left_behind()
    yield
    deadline = time.monotonic() + SETTLE_SECONDS
    while (left := left_behind() - before) and time.monotonic() < deadline:
        time.sleep(0.5)
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

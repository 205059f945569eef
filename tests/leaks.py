"""What a run of the tests could leave behind on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

LEFT = pytest.StashKey[set[str]]()  # what a whole run has left behind, in the stash of its configuration
SETTLE_SECONDS = 90.0  # the engine removes what it was told to remove later, and a busy one much later
OWNER_PREFIX = "test-"  # every provider in the tests has an owner that begins so


SILENT = "an engine that no longer answers, with whatever it holds"


def docker_json(*arguments: str) -> list[dict[str, object]] | None:
    """What the docker command lists, one JSON object a line; None where no engine answers."""
    client = "/usr/bin/docker" if os.path.exists("/usr/bin/docker") else "docker"
    try:
        ran = subprocess.run(
            [client, *arguments, "--format", "{{json .}}"],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return [json.loads(line) for line in ran.stdout.splitlines()]


def ours(labels: object) -> bool:
    return f"sandlot.owner={OWNER_PREFIX}" in str(labels)


def on_the_machine() -> set[str]:
    """Containers, volumes, sockets and mounts, of whichever test process."""
    containers, volumes = docker_json("ps", "-a"), docker_json("volume", "ls")
    # On a machine without an engine it is there before the run as well as after it.
    found = {SILENT} if containers is None or volumes is None else set()
    found |= {f"container {row['Names']}" for row in containers or [] if ours(row["Labels"])}
    found |= {f"volume {row['Name']}" for row in volumes or [] if ours(row["Labels"])}
    for line in Path("/proc/net/unix").read_text().splitlines():
        if "/sandlot-test-" in line:
            found.add(f"socket {line.split()[-1]}")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        if "/sandlot-test-" in line:
            found.add(f"mount {line.split()[1]}")
    return found


def child_processes() -> set[str]:
    """Of this process."""
    found = set()
    me = os.getpid()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_text(errors="replace").replace("\0", " ")
        except OSError:
            continue
        if int(fields[1]) == me and fields[0] != "Z" and "docker" not in command.split(" ")[0]:
            found.add(f"process {stat.parent.name} {command}")
    return found


def left_since(before: set[str], look: Callable[[], set[str]]) -> set[str]:
    """What is there beyond what was there before, after it had time to go away."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while (left := look() - before) and time.monotonic() < deadline:
        time.sleep(0.5)
    return left

"""Checks the user ids of sandboxes under churn. Sessions with files and processes come and go at random, for
minutes, with so few ids that each is reused again and again.

At any time, no two sandboxes may have the same user id, no process may have the id of a removed sandbox, and
each sandbox must run as the id in its record. At the end, nothing on this machine may belong to the id of a
removed sandbox. Exits with 1 on any violation.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.rig import Bar, ProcessorTime, docker, progress, report_bars
from bench.server import Served, serving
from sandlot import AsyncClient, AsyncSession
from sandlot.domain.errors import SandlotError
from sandlot.providers.docker.host.users import DEFAULT_USERS, UserRange

CALLERS = 6
POOL = 4
# About 6 sessions and 4 warm sandboxes are alive at once, and a few are being made or removed.
USERS = 32
GVISOR_SHARE = 0.15
KEPT_S = 2.0  # average life of a session
LOOK_EVERY_S = 0.5
REST_WITHIN_S = 90.0
# Makes files that only the sandbox's user can touch, in every writable place, and a lasting
# process.
USE = """
id -u; id -g
mkdir -p d/e && echo x >d/e/f && chmod -R 700 d && ln -s /etc/passwd l && mkfifo p
echo x >/tmp/f; echo x >/dev/shm/f
setsid sleep 600 >/dev/null 2>&1 &
"""


@dataclass
class Findings:
    """Counts and violations of a run."""

    users: UserRange
    sessions: int = 0
    failed: int = 0
    looks: int = 0
    processes: int = 0
    searched: int = 0  # files of live sandboxes that the final search found
    given: Counter[int] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def add_violation(self, what: str) -> None:
        progress(f"violation: {what}")
        self.violations.append(what)


def recorded_users(served: Served) -> dict[str, int]:
    """Returns the user of each sandbox that has a folder, by the first part of the sandbox's id."""
    found = {}
    for folder in (served.data_dir / "docker" / "s").iterdir():
        with contextlib.suppress(OSError, ValueError):  # the folder is being made, or has just been removed
            found[folder.name] = int((folder / "uid").read_text())
    return found


def containers(served: Served) -> set[str]:
    listed = docker(
        *("ps", "-a", "--filter", f"label=sandlot.owner={served.owner}"),
        *("--format", '{{.Label "sandlot.sandbox"}}'),
    )
    return {_folder(sandbox_id) for sandbox_id in listed.stdout.decode().split()}


def _folder(sandbox_id: str) -> str:
    return sandbox_id.removeprefix("sbx_")[:16]


def processes_of(users: UserRange) -> dict[tuple[int, str], tuple[int, ...]]:
    """Finds the processes of these users: pid and start time, with all their user and group ids."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = dict(re.findall(r"^(Uid|Gid):\s+(.*)", (process / "status").read_text(), re.MULTILINE))
            if int(fields["Uid"].split()[0]) not in users:
                continue
            started = (process / "stat").read_text().rpartition(")")[2].split()[19]
            ids = (*fields["Uid"].split(), *fields["Gid"].split())
            found[int(process.name), started] = tuple(map(int, ids))
    return found


async def use(served: Served, client: AsyncClient, findings: Findings, live: dict[int, str]) -> None:
    tier = "gvisor" if random.random() < GVISOR_SHARE else "base"
    session = await client.create(environment=tier)
    try:
        await _look_inside(served, session, findings, live)
        await asyncio.sleep(random.expovariate(1 / KEPT_S))
    finally:
        for uid in [uid for uid, sandbox in live.items() if sandbox == session.info.sandbox_id]:
            del live[uid]
        await session.delete()
    findings.sessions += 1


async def _look_inside(
    served: Served, session: AsyncSession, findings: Findings, live: dict[int, str]
) -> None:
    sandbox_id = str(session.info.sandbox_id)
    result = await session.run(USE)
    uid, gid = map(int, result.output.split()[:2])
    findings.given[uid] += 1
    if uid != gid or uid not in findings.users:
        findings.add_violation(f"{sandbox_id} has user {uid} and group {gid}, of {findings.users}")
    if uid in live:
        findings.add_violation(f"{sandbox_id} has user {uid}, as has {live[uid]}, which lives")
    live[uid] = sandbox_id
    if (recorded := recorded_users(served).get(_folder(sandbox_id))) != uid:
        findings.add_violation(f"{sandbox_id} has user {uid} inside, and {recorded} on record")


async def watch(served: Served, findings: Findings, over: asyncio.Event) -> None:
    known: dict[str, int] = {}  # users of all sandboxes, past and present
    while not over.is_set():
        await asyncio.to_thread(inspect, served, findings, known)
        await asyncio.sleep(LOOK_EVERY_S)


@dataclass(frozen=True)
class Snapshot:
    """One observation of the machine.

    Containers and processes are listed before and after the records are read. Those in both lists
    existed while the records were read.
    """

    containers: set[str]
    recorded: dict[str, int]
    processes: dict[tuple[int, str], tuple[int, ...]]


def inspect(served: Served, findings: Findings, known: dict[str, int]) -> None:
    before, seen = containers(served), processes_of(findings.users)
    recorded = recorded_users(served)
    after, still = containers(served), processes_of(findings.users)
    lasting = {process: ids for process, ids in seen.items() if process in still}
    known.update(recorded)
    findings.looks += 1
    findings.processes += len(seen)
    for what in violations_in(Snapshot(before & after, recorded, lasting), known):
        findings.add_violation(what)


def violations_in(snapshot: Snapshot, known: Mapping[str, int]) -> list[str]:
    """Finds violations. ``known`` has the users of all sandboxes, past and present.

    It is needed because a sandbox's folder may go before its container does.
    """
    found = []
    present = (snapshot.containers | snapshot.recorded.keys()) & known.keys()
    for uid, count in Counter(known[name] for name in present).items():
        if count > 1:
            found.append(
                f"user {uid} belongs to {sorted(name for name in present if known[name] == uid)} at once"
            )
    live_users = {known[name] for name in present}
    for process, ids in snapshot.processes.items():
        if gone := set(ids) - live_users:
            found.append(f"process {process[0]} runs as {sorted(gone)}, whose sandbox is gone")
    return found


def files_of(users: UserRange, *folders: Path) -> dict[str, int]:
    """Finds everything in the folders that has one of these users or groups.

    It does not enter mounts of other file systems. A broken search would find no violation, so this
    plants one file in the last folder and checks that the search finds it.
    """
    bounds = ("+" + str(users.first - 1), "-" + str(users.last + 1))
    matching = ["(", "-uid", bounds[0], "-uid", bounds[1], ")", "-o"]
    matching += ["(", "-gid", bounds[0], "-gid", bounds[1], ")"]
    roots = [str(folder) for folder in folders if folder.exists()]
    command = ["find", *roots, "-xdev", "(", *matching, ")", "-printf", r"%U %G %p\0"]
    with tempfile.NamedTemporaryFile(prefix="sandlot-planted-", dir=roots[-1]) as planted:
        os.chown(planted.fileno(), users.last, -1)
        ran = subprocess.run(command, capture_output=True, env={**os.environ, "LC_ALL": "C"})
    # A file that disappears during the search is no failure.
    errors = ran.stderr.decode("utf-8", "replace").splitlines()
    broken = [line for line in errors if not line.endswith(": No such file or directory")]
    if broken or (ran.returncode and not errors):
        raise RuntimeError(f"find exited with {ran.returncode}: {broken[:5]}")
    found = {}
    for line in filter(None, ran.stdout.decode("utf-8", "surrogateescape").split("\0")):
        uid, gid, path = line.split(" ", 2)
        found[path] = int(uid) if int(uid) in users else int(gid)
    if found.pop(planted.name, None) != users.last:
        raise RuntimeError(f"find did not see {planted.name}, which belonged to {users.last}")
    return found


def searched_folders(served: Served) -> tuple[Path, ...]:
    root = docker("info", "-f", "{{.DockerRootDir}}").stdout.decode().strip()
    return (Path(root), served.data_dir, *map(Path, ("/tmp", "/var/tmp", "/dev/shm", "/run/lock")))


async def wait_until_quiet(served: Served, client: AsyncClient) -> None:
    """Waits until there is no session and the pool does not change."""
    deadline = time.monotonic() + REST_WITHIN_S
    while time.monotonic() < deadline:
        await asyncio.sleep(2)
        health = await client.health()
        ready = sum(pool.ready for pool in health.pools.values())
        making = sum(pool.making for pool in health.pools.values())
        there = await asyncio.to_thread(containers, served)
        if not making and len(there) == ready and recorded_users(served).keys() == there:
            return


def check_nothing_left(served: Served, findings: Findings) -> None:
    """Checks that removed sandboxes left nothing, while the pool's sandboxes are alive."""
    live = recorded_users(served)
    names = {uid: name for name, uid in live.items()}
    for path, uid in files_of(findings.users, *searched_folders(served)).items():
        # A user id may have been reused. Then the path names the sandbox that the file belongs to.
        if uid not in names or ("/volumes/sandlot-" in path and names[uid] not in path):
            findings.add_violation(f"{path} belongs to {uid}, whose sandbox is gone")
        else:
            findings.searched += 1
    for process, ids in processes_of(findings.users).items():
        if not names.keys() >= set(ids):
            findings.add_violation(f"process {process[0]} runs as {ids}, whose sandbox is gone")


async def churn(served: Served, client: AsyncClient, findings: Findings, seconds: float) -> None:
    over, live = asyncio.Event(), dict[int, str]()
    deadline = time.monotonic() + seconds

    async def caller() -> None:
        while time.monotonic() < deadline:
            try:
                await use(served, client, findings, live)
            except SandlotError as error:
                findings.failed += 1
                progress(f"failed: {error!r}")

    async def report_progress() -> None:
        while time.monotonic() < deadline:
            progress(f"{findings.sessions} sessions, {len(findings.given)} users, {findings.looks} looks")
            await asyncio.sleep(min(30.0, max(1.0, seconds / 10)))

    watching = asyncio.create_task(watch(served, findings, over))
    await asyncio.gather(report_progress(), *(caller() for _ in range(CALLERS)))
    over.set()
    await watching


async def measure(minutes: float) -> Findings:
    first = DEFAULT_USERS.first + secrets.randbelow(DEFAULT_USERS.last - DEFAULT_USERS.first - USERS)
    findings = Findings(UserRange(first, first + USERS - 1))
    pools: dict[str, Any] = {"pool_size": POOL, "min_pool_size": POOL, "max_pool_size": POOL}
    async with serving(sandbox_users=findings.users, **pools) as served, served.client() as client:
        await served.wait_warm(POOL)
        await churn(served, client, findings, minutes * 60)
        await wait_until_quiet(served, client)
        await asyncio.to_thread(check_nothing_left, served, findings)
        everywhere = searched_folders(served)
    # By now the rig has removed the pool's sandboxes too.
    for path, uid in files_of(findings.users, *everywhere).items():
        findings.add_violation(f"{path} belongs to {uid}, and no sandbox is left")
    for process, ids in processes_of(findings.users).items():
        findings.add_violation(f"process {process[0]} runs as {ids}, and no sandbox is left")
    return findings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    assert os.geteuid() == 0, "whose a file or process is, everywhere on this machine, is root's to see"
    before = ProcessorTime.now()
    findings = asyncio.run(measure(arguments.minutes))
    again = sum(findings.given.values()) - len(findings.given)
    bars = [
        Bar("sessions, failed", f"{findings.sessions}, {findings.failed}", "0 failed", not findings.failed),
        Bar(f"users of {USERS}, given out again", f"{len(findings.given)}, {again}", "", True),
        Bar(
            "looks, processes looked at",
            f"{findings.looks}, {findings.processes}",
            "",
            findings.processes > 0,
        ),
        Bar(
            "files of live sandboxes that the search sees",
            str(findings.searched),
            "some",
            findings.searched > 0,
        ),
        Bar("violations", str(len(findings.violations)), "0", not findings.violations),
        Bar("stolen by the host", f"{ProcessorTime.now().stolen_since(before):.1%}", "", True),
    ]
    sys.exit(report_bars(bars, as_json=arguments.json, violations=findings.violations))


if __name__ == "__main__":
    main()

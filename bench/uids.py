"""Users of sandboxes under churn: sessions with files and processes come and go at random, for minutes, with
so few numbers to choose from that each is given out again and again.

All the time: no two sandboxes that exist have the same user, no process on this machine has the user of a
sandbox that is gone, and inside each is who its record says. In the end nothing on this machine belongs to
a user whose sandbox is gone. Exits with 1 on any violation.
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

from bench.rig import Bar, ProcessorTime, docker, judged, progress
from bench.server import Served, serving
from sandlot import AsyncClient, AsyncSession
from sandlot.domain.errors import SandlotError
from sandlot.providers.docker.users import DEFAULT_USERS, UserRange

CALLERS = 6
POOL = 4
# Live at once are about 6 sessions, 4 warm sandboxes and a few on their way in or out.
USERS = 32
GVISOR_SHARE = 0.15
KEPT_S = 2.0  # a session, on average
LOOK_EVERY_S = 0.5
REST_WITHIN_S = 90.0
# Files that only its user can touch, in every place that can be written, and a process that stays.
USE = """
id -u; id -g
mkdir -p d/e && echo x >d/e/f && chmod -R 700 d && ln -s /etc/passwd l && mkfifo p
echo x >/tmp/f; echo x >/dev/shm/f
setsid sleep 600 >/dev/null 2>&1 &
"""


@dataclass
class Book:
    """What was seen."""

    users: UserRange
    sessions: int = 0
    failed: int = 0
    looks: int = 0
    processes: int = 0
    searched: int = 0  # files that the search in the end has seen, of sandboxes that live
    given: Counter[int] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def wrong(self, what: str) -> None:
        progress(f"violation: {what}")
        self.violations.append(what)


def on_record(served: Served) -> dict[str, int]:
    """Of each sandbox that the worker has a folder for, its user; by the first part of its id."""
    found = {}
    for folder in (served.data_dir / "docker" / "s").iterdir():
        with contextlib.suppress(OSError, ValueError):  # it is being made, or has just gone
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


def running(users: UserRange) -> dict[tuple[int, str], tuple[int, ...]]:
    """Processes of these users: number and start, and every user and group that they have."""
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


async def use(served: Served, client: AsyncClient, book: Book, live: dict[int, str]) -> None:
    tier = "gvisor" if random.random() < GVISOR_SHARE else "base"
    session = await client.create(environment=tier)
    try:
        await _look_inside(served, session, book, live)
        await asyncio.sleep(random.expovariate(1 / KEPT_S))
    finally:
        for uid in [uid for uid, sandbox in live.items() if sandbox == session.info.sandbox_id]:
            del live[uid]
        await session.delete()
    book.sessions += 1


async def _look_inside(served: Served, session: AsyncSession, book: Book, live: dict[int, str]) -> None:
    sandbox_id = str(session.info.sandbox_id)
    result = await session.run(USE)
    uid, gid = map(int, result.output.split()[:2])
    book.given[uid] += 1
    if uid != gid or uid not in book.users:
        book.wrong(f"{sandbox_id} has user {uid} and group {gid}, of {book.users}")
    if uid in live:
        book.wrong(f"{sandbox_id} has user {uid}, as has {live[uid]}, which lives")
    live[uid] = sandbox_id
    if (recorded := on_record(served).get(_folder(sandbox_id))) != uid:
        book.wrong(f"{sandbox_id} has user {uid} inside, and {recorded} on record")


async def watch(served: Served, book: Book, over: asyncio.Event) -> None:
    known: dict[str, int] = {}  # of every sandbox that ever was
    while not over.is_set():
        await asyncio.to_thread(look, served, book, known)
        await asyncio.sleep(LOOK_EVERY_S)


@dataclass(frozen=True)
class Sight:
    """One look. Containers and processes are looked at before and after the records: what is there both times is
    there while they are read.
    """

    containers: set[str]
    recorded: dict[str, int]
    processes: dict[tuple[int, str], tuple[int, ...]]


def look(served: Served, book: Book, known: dict[str, int]) -> None:
    before, seen = containers(served), running(book.users)
    recorded = on_record(served)
    after, still = containers(served), running(book.users)
    there = {process: ids for process, ids in seen.items() if process in still}
    known.update(recorded)
    book.looks += 1
    book.processes += len(seen)
    for what in wrong_in(Sight(before & after, recorded, there), known):
        book.wrong(what)


def wrong_in(sight: Sight, known: Mapping[str, int]) -> list[str]:
    """``known``: of every sandbox that ever was, its user; its folder may go before its container does."""
    found = []
    there = (sight.containers | sight.recorded.keys()) & known.keys()
    for uid, count in Counter(known[name] for name in there).items():
        if count > 1:
            found.append(
                f"user {uid} belongs to {sorted(name for name in there if known[name] == uid)} at once"
            )
    whose = {known[name] for name in there}
    for process, ids in sight.processes.items():
        if gone := set(ids) - whose:
            found.append(f"process {process[0]} runs as {sorted(gone)}, whose sandbox is gone")
    return found


def owned(users: UserRange, *folders: Path) -> dict[str, int]:
    """Whatever there has one of these users or groups; mounts of other file systems apart.

    A search that broke would have found nothing wrong. So one file is planted, in the folder that comes last.
    """
    bounds = ("+" + str(users.first - 1), "-" + str(users.last + 1))
    matching = ["(", "-uid", bounds[0], "-uid", bounds[1], ")", "-o"]
    matching += ["(", "-gid", bounds[0], "-gid", bounds[1], ")"]
    there = [str(folder) for folder in folders if folder.exists()]
    command = ["find", *there, "-xdev", "(", *matching, ")", "-printf", r"%U %G %p\0"]
    with tempfile.NamedTemporaryFile(prefix="sandlot-planted-", dir=there[-1]) as planted:
        os.chown(planted.fileno(), users.last, -1)
        ran = subprocess.run(command, capture_output=True, env={**os.environ, "LC_ALL": "C"})
    # What goes while it is searched is no failure.
    said = ran.stderr.decode("utf-8", "replace").splitlines()
    broken = [line for line in said if not line.endswith(": No such file or directory")]
    if broken or (ran.returncode and not said):
        raise RuntimeError(f"find exited with {ran.returncode}: {broken[:5]}")
    found = {}
    for line in filter(None, ran.stdout.decode("utf-8", "surrogateescape").split("\0")):
        uid, gid, path = line.split(" ", 2)
        found[path] = int(uid) if int(uid) in users else int(gid)
    if found.pop(planted.name, None) != users.last:
        raise RuntimeError(f"find did not see {planted.name}, which belonged to {users.last}")
    return found


def places(served: Served) -> tuple[Path, ...]:
    root = docker("info", "-f", "{{.DockerRootDir}}").stdout.decode().strip()
    return (Path(root), served.data_dir, *map(Path, ("/tmp", "/var/tmp", "/dev/shm", "/run/lock")))


async def rest(served: Served, client: AsyncClient) -> None:
    """No session, and a pool that is not being changed."""
    deadline = time.monotonic() + REST_WITHIN_S
    while time.monotonic() < deadline:
        await asyncio.sleep(2)
        health = await client.health()
        ready = sum(pool.ready for pool in health.pools.values())
        making = sum(pool.making for pool in health.pools.values())
        there = await asyncio.to_thread(containers, served)
        if not making and len(there) == ready and on_record(served).keys() == there:
            return


def nothing_is_left(served: Served, book: Book) -> None:
    """Of the sandboxes that are gone, while the pool's live."""
    live = on_record(served)
    names = {uid: name for name, uid in live.items()}
    for path, uid in owned(book.users, *places(served)).items():
        # Of a number that was given again, the name in the path says to which of the two it belongs.
        if uid not in names or ("/volumes/sandlot-" in path and names[uid] not in path):
            book.wrong(f"{path} belongs to {uid}, whose sandbox is gone")
        else:
            book.searched += 1
    for process, ids in running(book.users).items():
        if not names.keys() >= set(ids):
            book.wrong(f"process {process[0]} runs as {ids}, whose sandbox is gone")


async def churn(served: Served, client: AsyncClient, book: Book, seconds: float) -> None:
    over, live = asyncio.Event(), dict[int, str]()
    deadline = time.monotonic() + seconds

    async def caller() -> None:
        while time.monotonic() < deadline:
            try:
                await use(served, client, book, live)
            except SandlotError as error:
                book.failed += 1
                progress(f"failed: {error!r}")

    async def tell() -> None:
        while time.monotonic() < deadline:
            progress(f"{book.sessions} sessions, {len(book.given)} users, {book.looks} looks")
            await asyncio.sleep(min(30.0, max(1.0, seconds / 10)))

    watching = asyncio.create_task(watch(served, book, over))
    await asyncio.gather(tell(), *(caller() for _ in range(CALLERS)))
    over.set()
    await watching


async def measure(minutes: float) -> Book:
    first = DEFAULT_USERS.first + secrets.randbelow(DEFAULT_USERS.last - DEFAULT_USERS.first - USERS)
    book = Book(UserRange(first, first + USERS - 1))
    pools: dict[str, Any] = {"pool_size": POOL, "min_pool_size": POOL, "max_pool_size": POOL}
    async with serving(sandbox_users=book.users, **pools) as served, served.client() as client:
        await served.wait_warm(POOL)
        await churn(served, client, book, minutes * 60)
        await rest(served, client)
        await asyncio.to_thread(nothing_is_left, served, book)
        everywhere = places(served)
    # The rig has removed the pool's as well.
    for path, uid in owned(book.users, *everywhere).items():
        book.wrong(f"{path} belongs to {uid}, and no sandbox is left")
    for process, ids in running(book.users).items():
        book.wrong(f"process {process[0]} runs as {ids}, and no sandbox is left")
    return book


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    assert os.geteuid() == 0, "whose a file or process is, everywhere on this machine, is root's to see"
    before = ProcessorTime.now()
    book = asyncio.run(measure(arguments.minutes))
    again = sum(book.given.values()) - len(book.given)
    bars = [
        Bar("sessions, failed", f"{book.sessions}, {book.failed}", "0 failed", not book.failed),
        Bar(f"users of {USERS}, given out again", f"{len(book.given)}, {again}", "", True),
        Bar("looks, processes looked at", f"{book.looks}, {book.processes}", "", book.processes > 0),
        Bar("files of live sandboxes that the search sees", str(book.searched), "some", book.searched > 0),
        Bar("violations", str(len(book.violations)), "0", not book.violations),
        Bar("stolen by the host", f"{ProcessorTime.now().stolen_since(before):.1%}", "", True),
    ]
    sys.exit(judged(bars, as_json=arguments.json, violations=book.violations))


if __name__ == "__main__":
    main()

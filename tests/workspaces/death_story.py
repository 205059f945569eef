"""Random calls on a session whose server may die in each of them, and what may be true after it."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from sandlot import AsyncClient, AsyncSession
from sandlot.domain.callers.principal import OWNER
from sandlot.domain.ids import new_session_id, new_snapshot_id
from sandlot.domain.session import DEFAULT_ENVIRONMENT
from sandlot.domain.workspaces.exports import Cause, ExportMeta
from sandlot.domain.workspaces.snapshots import Snapshot
from sandlot.providers.docker.workspaces.btrfs.mounts import FILES_UID
from sandlot.worker.workspaces.objects.storage import ObjectStorage

FILES = 40
FEW_SNAPSHOTS = 4
OTHER_WORKER = "0" * 8


@dataclass
class Story:
    """What may be true. ``values``: which value all files of the session may have; more than one only while a
    call has not answered. ``snapshots``: what each has. ``named``: of these, the ones that are saved in object
    storage. ``elsewhere``: those that may only be there. ``steps_left``: where the server dies in the next rounds.
    """

    random: random.Random
    values: set[int] = field(default_factory=lambda: {0})
    next_value: int = 1
    snapshots: dict[str, set[int]] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)
    elsewhere: set[str] = field(default_factory=set)
    steps_left: list[str] = field(default_factory=list)
    died_at: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)

    def new_value(self) -> int:
        value, self.next_value = self.next_value, self.next_value + 1
        return value

    def forget(self, snapshot: str) -> None:
        del self.snapshots[snapshot]
        self.named.discard(snapshot)


def writing(value: int) -> str:
    """A command that gives all files a value, one after the other."""
    return f"for i in $(seq {FILES}); do echo {value} > file$i; done"


async def value_of(session: AsyncSession) -> int:
    result = await session.run("cat file* | sort | uniq -c")
    assert result.exit_code == 0, result.output
    (line,) = result.output.splitlines()
    count, value = map(int, line.split())
    assert count == FILES
    return value


def value_in(folder: Path) -> int:
    values = [int(path.read_text()) for path in folder.iterdir()]
    assert len(values) == FILES
    (value,) = set(values)
    return value


async def save_elsewhere(objects: ObjectStorage, value: int) -> str:
    """Save a snapshot in object storage as another worker does."""
    snapshot = Snapshot(
        id=new_snapshot_id(OTHER_WORKER),
        session_id=new_session_id(),
        created_at=time.time(),
        environment=DEFAULT_ENVIRONMENT,
        tenant=OWNER.tenant,
        name="saved",
    )
    folder = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    try:
        for number in range(FILES):
            (folder / f"file{number + 1}").write_text(f"{value}\n")
        for path in (folder, *folder.iterdir()):
            os.chown(path, FILES_UID, FILES_UID)
        meta = msgspec.json.encode(ExportMeta(snapshot, 1, Cause.NAMED))
        await objects.save(OWNER.tenant, snapshot.id, folder, meta)
    finally:
        shutil.rmtree(folder)
    return snapshot.id


class Caller:
    """Makes random calls on one session. After each that answered, the story is certain again."""

    def __init__(
        self, client: AsyncClient, session: AsyncSession, objects: ObjectStorage, story: Story
    ) -> None:
        self._client = client
        self._session = session
        self._objects = objects
        self._story = story

    async def call(self) -> None:
        calls = (
            self.write,
            self.snapshot,
            self.save,
            self.restore,
            self.fork,
            self.hibernate,
            self.wake,
            self.load,
            self.delete,
        )
        call = self._story.random.choice(calls)
        self._story.calls[call.__name__] += 1
        await call()

    async def write(self) -> None:
        value = self._story.new_value()
        # Killed in the middle, the command goes on in the sandbox. The next start finds all of it.
        self._story.values = {*self._story.values, value}
        assert (await self._session.run(writing(value))).exit_code == 0
        self._story.values = {value}

    async def snapshot(self) -> None:
        taken = await self._session.workspace.snapshot()
        self._story.snapshots[taken.id] = set(self._story.values)

    async def save(self) -> None:
        """Take one that is saved in object storage too."""
        taken = await self._session.workspace.snapshot("saved")
        self._story.snapshots[taken.id] = set(self._story.values)
        self._story.named.add(taken.id)

    async def restore(self) -> None:
        if (chosen := self._chosen()) is None:
            return
        before, values = self._story.values, self._story.snapshots[chosen]
        self._story.values = before | values
        await self._session.workspace.restore(chosen)
        self._story.values = set(values)

    async def fork(self) -> None:
        values = set(self._story.values)
        (fork,) = await self._session.fork()
        assert await value_of(fork) in values
        await fork.delete()

    async def hibernate(self) -> None:
        await self._session.hibernate()

    async def wake(self) -> None:
        assert await value_of(self._session) in self._story.values

    async def load(self) -> None:
        """Begin a session with what another worker has saved."""
        value = self._story.new_value()
        snapshot = await save_elsewhere(self._objects, value)
        self._story.snapshots[snapshot] = {value}
        self._story.named.add(snapshot)
        self._story.elsewhere.add(snapshot)
        session = await self._client.create(snapshot=snapshot)
        self._story.elsewhere.discard(snapshot)
        assert await value_of(session) == value
        await session.delete()

    async def delete(self) -> None:
        if len(self._story.snapshots) > FEW_SNAPSHOTS and (chosen := self._chosen()) is not None:
            self._story.forget(chosen)
            await self._client.delete_snapshot(chosen)

    def _chosen(self) -> str | None:
        known = sorted(self._story.snapshots.keys() - self._story.elsewhere)
        return self._story.random.choice(known) if known else None

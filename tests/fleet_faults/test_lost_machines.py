"""A worker's machine is lost for good, with its disk. What was exported goes on at another worker, as of then."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest

from sandlot import AsyncClient, AsyncSession, errors
from sandlot.domain.callers.principal import OWNER
from sandlot.domain.session import KEPT_FILES, LossReport
from sandlot.domain.workspaces.objects.locations import parse_location
from sandlot.testing.eventually import eventually
from sandlot.worker.workspaces.objects.options import ObjectOptions
from sandlot.worker.workspaces.objects.storage import ObjectStorage
from tests.faults.rig import created_at_last
from tests.fleet_faults.member import Member
from tests.fleet_faults.rig import READY_WITHIN_S, Fleet, running
from tests.fleet_faults.waiting import given_up
from tests.workspaces.storage import mounted_btrfs, require_btrfs

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(900)]

SESSIONS = 20
WITHIN_S = 60.0
EVERY_S = 3
AS_OF = f"{KEPT_FILES} as of "


@pytest.fixture
def objects() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def saved(objects: Path) -> AsyncIterator[ObjectStorage]:
    storage = ObjectStorage(ObjectOptions(parse_location(f"file://{objects}")))
    await storage.open()
    yield storage
    await storage.close()


class Machines:
    """A fleet whose workers have a disk each. ``lose`` takes one away with everything on it."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._disks: dict[str, ExitStack] = {}

    async def new(self) -> Member:
        """Not started."""
        disk = ExitStack()
        storage = await asyncio.to_thread(disk.enter_context, mounted_btrfs())
        worker = self.fleet.new_worker(storage_dir=str(storage))
        self._disks[worker.owner] = disk
        self.fleet.workers.append(worker)
        return worker

    async def add(self) -> Member:
        worker = await self.new()
        await worker.start(ready=False)
        await worker.wait_ready(READY_WITHIN_S)
        return worker

    async def lose(self, worker: Member) -> None:
        await worker.kill()
        await worker.clean()
        self.fleet.workers.remove(worker)
        await asyncio.to_thread(self._disks.pop(worker.owner).close)

    async def clean(self) -> None:
        for worker in self.fleet.workers:
            await worker.clean()
        for disk in self._disks.values():
            await asyncio.to_thread(disk.close)


@asynccontextmanager
async def machines(objects: Path, **settings: str) -> AsyncIterator[Machines]:
    require_btrfs()
    fleet = Fleet(
        workers=0, coordinators=1, workspace_store="btrfs", objects_url=f"file://{objects}", **settings
    )
    rig = Machines(fleet)
    try:
        await rig.new()  # without a worker, no coordinator is ready
        async with running(fleet):
            yield rig
    finally:
        await rig.clean()


async def ok(session: AsyncSession, command: str) -> str:
    result = await session.run(command, timeout=60)
    assert result.exit_code == 0, result
    return result.output


async def until_saved(saved: ObjectStorage, sessions: list[AsyncSession]) -> None:
    async def all_saved() -> bool:
        return all([await saved.marks(OWNER.tenant, session.id) for session in sessions])

    await eventually(all_saved, WITHIN_S)


async def until_saved_in_turn(saved: ObjectStorage, session_id: str, since: float) -> float:
    """Until two snapshots since then are as near to each other as was asked for. Returns when the last was taken.

    A busy machine is late for some of them, but not for all.
    """
    taken: set[float] = set()

    async def in_turn() -> bool:
        marks = await saved.marks(OWNER.tenant, session_id)
        taken.update(mark.created_at for mark in marks if mark.created_at > since)
        return any(later - earlier <= 2 * EVERY_S for earlier, later in pairwise(sorted(taken)))

    await eventually(in_turn, WITHIN_S, lambda: f"two snapshots in turn; taken at {sorted(taken)}")
    return max(taken)


async def written_at(session: AsyncSession) -> float:
    """What the session's command has written last."""

    async def is_there() -> bool:
        return (await session.run("test -s now", timeout=60)).exit_code == 0

    await eventually(is_there, WITHIN_S)
    return float(await ok(session, "cat now"))


async def recreated(client: AsyncClient, session: AsyncSession) -> AsyncSession:
    lost = await given_up(client, session.info.thread or "")
    assert lost.id == session.id
    return await lost.recreate()


def loss_of(session: AsyncSession) -> LossReport:
    assert session.info.loss is not None
    return session.info.loss


def as_of(session: AsyncSession) -> float:
    """The time that the report says."""
    (kept,) = (thing for thing in loss_of(session).kept if thing.startswith(AS_OF))
    text = kept.removeprefix(AS_OF)
    assert f"changes in /workspace since {text}" in loss_of(session).lost
    return datetime.strptime(text, "%Y-%m-%d %H:%M:%S UTC").replace(tzinfo=UTC).timestamp()


async def test_sessions_go_on_elsewhere(objects: Path, saved: ObjectStorage) -> None:
    """A third hibernates, a third has a named snapshot, and a third has nothing."""
    async with machines(objects) as rig:
        (first,) = rig.fleet.workers
        async with rig.fleet.client() as client:
            sessions = [
                await created_at_last(client, thread=f"t{number}", certain=False)
                for number in range(SESSIONS)
            ]
            for session in sessions:
                await ok(session, f"mkdir d; echo {session.info.thread} >d/a; chmod 600 d/a")
            asleep, named, neither = sessions[:7], sessions[7:14], sessions[14:]
            for session in asleep:
                await session.hibernate()
            kept = []
            for session in named:
                kept.append(await session.workspace.snapshot("kept"))
                await ok(session, "echo later >d/b")
            await until_saved(saved, [*asleep, *named])
            second = await rig.add()
            died_at = datetime.now(UTC).timestamp()
            await rig.lose(first)

            again = {
                session.id: one
                for session, one in zip(
                    sessions,
                    await asyncio.gather(*(recreated(client, session) for session in sessions)),
                    strict=True,
                )
            }
            await look_at(again, asleep, named, neither, died_at)
            assert set(second.containers()) >= {one.info.sandbox_id for one in again.values()}
            # Named snapshots of the lost machine are there for new sessions, too.
            new = await created_at_last(client, snapshot=kept[0].id, certain=False)
            assert await ok(new, "cat d/a") == f"{named[0].info.thread}\n"
            missing = "snp_" + kept[0].id[4:12] + "0" * 24
            with pytest.raises(errors.Unavailable) as gone:
                await client.create(snapshot=missing)
            assert gone.value.details["reason"] == "worker_gone"
            for one in (new, *again.values()):
                await one.delete()


async def look_at(
    again: Mapping[str, AsyncSession],
    asleep: list[AsyncSession],
    named: list[AsyncSession],
    neither: list[AsyncSession],
    died_at: float,
) -> None:
    for session in (*asleep, *named):
        one = again[session.id]
        assert one.info.generation == 2
        assert await ok(one, "cd d; stat -c %a a; cat *") == f"600\n{session.info.thread}\n"
        assert as_of(one) <= died_at + 1
    for session in neither:
        one = again[session.id]
        assert await ok(one, "ls -A") == ""
        assert KEPT_FILES in loss_of(one).lost
        assert not any(thing.startswith(KEPT_FILES) for thing in loss_of(one).kept)


async def test_what_is_saved_regularly_bounds_the_loss(objects: Path, saved: ObjectStorage) -> None:
    """Twice: what was taken over is saved too."""
    async with machines(objects, snapshot_every=str(EVERY_S)) as rig:
        (worker,) = rig.fleet.workers
        async with rig.fleet.client() as client:
            session = await created_at_last(client, thread="writes", certain=False)
            for generation in (1, 2):
                await session.start("while sleep 0.2; do date +%s >new && mv new now; done")
                seen = await written_at(session)
                saved_at = await until_saved_in_turn(saved, session.id, datetime.now(UTC).timestamp())
                other = await rig.add()
                await rig.lose(worker)
                session = await recreated(client, session)
                worker = other
                assert session.info.generation == generation + 1
                written = float(await ok(session, "cat now"))
                assert written <= as_of(session) + 1, "nothing is newer than the report says"
                assert as_of(session) >= int(saved_at), "the last one that was saved is there"
                assert written >= seen, "with what was written before it"
            await session.delete()


async def test_artifacts_of_a_lost_machine_are_still_there(objects: Path) -> None:
    """On Docker volumes: object storage needs no btrfs for them."""
    fleet = Fleet(workers=1, coordinators=1, objects_url=f"file://{objects}")
    (first,) = fleet.workers
    content = bytes(range(256)) * 8192
    async with running(fleet), fleet.client() as client:
        session = await created_at_last(client, thread="plots", certain=False)
        await session.files.write("/workspace/plot.bin", content)
        await session.files.write("/workspace/note.txt", b"note")
        kept = (await session.artifacts.keep("plot.bin", "note.txt")).kept
        await session.delete()

        async def all_saved() -> bool:
            # The record is published last.
            return len(list(objects.glob("tenants/*/artifacts/art_*"))) == len(kept)

        await eventually(all_saved, WITHIN_S)
        second = fleet.new_worker()
        fleet.workers.append(second)
        await second.start(ready=False)
        await second.wait_ready(READY_WITHIN_S)
        await first.kill()
        await first.clean()  # with its disk
        fleet.workers.remove(first)

        async def listed_again() -> bool:
            page = [artifact async for artifact in client.artifacts.list(partial=True)]
            return page == list(kept)

        await eventually(listed_again, WITHIN_S)
        assert [artifact async for artifact in client.artifacts.list(thread="plots")] == list(kept)
        assert [artifact async for artifact in client.artifacts.list(session.id)] == list(kept)
        assert await client.artifacts.read(kept[0].id) == content
        assert await client.artifacts.get(kept[1].id) == kept[1]
        # Another tenant does not even learn that they exist.
        async with fleet.client(key=await fleet.key_of("stranger")) as stranger:
            assert [artifact async for artifact in stranger.artifacts.list()] == []
            with pytest.raises(errors.SandlotError):
                await stranger.artifacts.read(kept[0].id)
        await client.artifacts.delete(kept[0].id)
        with pytest.raises(errors.SandlotError):
            await client.artifacts.read(kept[0].id)
        assert [artifact async for artifact in client.artifacts.list()] == [kept[1]]


async def test_a_moved_conversation_goes_back(objects: Path, saved: ObjectStorage) -> None:
    """A snapshot that was saved is loaded. One that was not is refused, with the reason."""
    async with machines(objects) as rig:
        (first,) = rig.fleet.workers
        async with rig.fleet.client() as client:
            session = await created_at_last(client, thread="moves", certain=False)
            await ok(session, "echo 1 >a")
            kept = await session.workspace.snapshot("kept")
            await ok(session, "echo 2 >a")
            unsaved = await session.workspace.snapshot()
            await until_saved(saved, [session])
            await rig.add()
            await rig.lose(first)

            session = await recreated(client, session)
            assert await ok(session, "cat a; echo 3 >a") == "1\n"
            with pytest.raises(errors.Unavailable, match="is gone, and the snapshot is not in") as gone:
                await session.workspace.restore(unsaved.id)
            assert gone.value.details["reason"] == "worker_gone"
            assert await ok(session, "cat a") == "3\n"
            await session.workspace.restore(kept.id)
            assert await ok(session, "cat a") == "1\n"
            await session.delete()

"""What is kept over restarts, a kill -9 and a history that forgets."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from tests.unit.webhooks.receiver import HASTY, PATIENT, Request, receiving, rig_in, status

from sandlot.domain.callers.principal import OWNER
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.history.events import EventKind
from sandlot.domain.history.query import EventQuery
from sandlot.domain.webhooks import webhook as limits
from sandlot.testing.eventually import eventually
from sandlot.worker.webhooks.store import FILE_NAME

MIB = 1024 * 1024


async def test_a_restart_goes_on_where_it_was(data_dir: Path) -> None:
    """Also with the attempts: a server that restarts all the time still gives up once."""
    accepts = True

    async def answers(_: Request) -> bytes:
        return status(200 if accepts else 500)

    async with receiving(answers) as receiver:
        async with rig_in(data_dir) as rig:
            webhook = await rig.create(receiver)
            rig.record(1, 2)
            await rig.until_delivered(webhook, 2)
            rig.record(3, kind=EventKind.KEY_USED)
            accepts = False
            rig.record(4)
            before = await rig.until(webhook, lambda found: found.attempts >= 2)
        async with rig_in(data_dir, HASTY) as rig:
            progress = await rig.until(webhook, lambda found: found.dead_letters == 1)
            assert (await rig.dead_letters(webhook))[0].attempts >= before.attempts + 1
            assert progress.delivered == 2
            accepts = True
            rig.record(5)
            await rig.until_delivered(webhook, 3)
    assert receiver.numbers[:2] == [1, 2]
    assert receiver.numbers[-1] == 5
    assert set(receiver.numbers[2:-1]) == {4}
    assert len(set(receiver.ids)) == 4


_KILLED = """
import asyncio, sys
from pathlib import Path
from tests.unit.webhooks.receiver import rig_in
from sandlot.domain.callers.principal import OWNER
from sandlot.domain.history.query import EventQuery

async def main():
    folder, first, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    async with rig_in(folder) as rig:
        rig.record(*range(first, first + count))
        await rig.history.page(OWNER, EventQuery())  # they are on disk
        print("recorded", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_killed_server_loses_nothing_and_repeats_with_the_same_ids(data_dir: Path) -> None:
    """Killed while a delivery is on its way, before and after the receiver has answered."""
    reached, count, lives = asyncio.Event(), 30, 6

    async def answers(request: Request) -> bytes:
        if len(receiver.requests) % 17 == 0:
            reached.set()
        return status(200)

    async with receiving(answers) as receiver:
        async with rig_in(data_dir) as rig:
            webhook = await rig.create(receiver)
        for life in range(lives):
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", _KILLED, str(data_dir), str(life * count), str(count),
                stdout=asyncio.subprocess.PIPE, env=os.environ,
            )  # fmt: skip
            assert process.stdout is not None
            assert await asyncio.wait_for(process.stdout.readline(), 60) == b"recorded\n"
            reached.clear()
            await asyncio.wait_for(reached.wait(), 60)
            process.kill()
            assert await process.wait() == -signal.SIGKILL
        async with rig_in(data_dir):
            await eventually(lambda: len(set(receiver.numbers)) == lives * count, 60)
    by_number: dict[int, set[str]] = {}
    for request in receiver.requests:
        assert request.is_signed_with(webhook.secret)
        by_number.setdefault(request.number, set()).add(request.id)
    assert sorted(by_number) == list(range(lives * count)), "nothing is lost"
    assert {len(ids) for ids in by_number.values()} == {1}, "no event has two ids"
    assert len(receiver.requests) <= lives * count + lives, "a life repeats one delivery at most"
    firsts = list(dict.fromkeys(receiver.numbers))
    assert firsts == sorted(firsts), "in order"


async def test_a_history_that_forgets_is_reported(data_dir: Path) -> None:
    """The receiver is down while its tenant's events are deleted: each is counted once, the rest comes."""
    down = True

    async def answers(_: Request) -> bytes:
        return status(503 if down else 200)

    async with rig_in(data_dir, PATIENT, max_bytes=MIB) as rig, receiving(answers) as receiver:
        webhook = await rig.create(receiver, "session.ended")
        count, numbers = 0, range(1000)
        while (await rig.progress(webhook)).missed == 0:
            rig.record(*(count + number for number in numbers))
            rig.record(*numbers, kind=EventKind.SESSION_LOST)  # not of its types, and so not missed
            rig.record(*numbers, tenant="other")
            count += len(numbers)
            await rig.history.page(OWNER, EventQuery(limit=1))
            assert count < 50_000
        down = False
        rig.record(count)
        await eventually(lambda: receiver.requests and receiver.numbers[-1] == count, 60)
        progress = await rig.until(webhook, lambda found: found.attempts == 0 and not found.error)
        # An event that was on its way while it was deleted counts, and may have been accepted.
        assert count + 1 <= progress.delivered + progress.missed <= count + 2


async def test_what_was_counted_as_missed_is_not_counted_again(data_dir: Path) -> None:
    async with rig_in(data_dir) as rig:
        webhook = await rig.create("https://nowhere.invalid/")
        newest = rig.history.newest_us
        old = [(newest + number, "default", "session.ended") for number in range(1, 6)]
        for deleted in (old[:3], old[:3], old, [(newest - 5, "default", "session.ended")]):
            await rig.webhooks.deleting(deleted)
        await rig.webhooks.deleting(
            [(newest + 10, "default", "exec.ended"), (newest + 11, "x", "session.ended")]
        )
        assert (await rig.progress(webhook)).missed == 5


async def test_dead_letters_are_bounded_and_come_page_by_page(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_DEAD_LETTERS", 7)

    async def wrong(_: Request) -> bytes:
        return status(500)

    async with rig_in(data_dir, HASTY) as rig, receiving(wrong) as receiver:
        webhook = await rig.create(receiver)
        rig.record(*range(10))
        progress = await rig.until(webhook, lambda found: found.dead_letters + found.missed == 10)
        assert (progress.dead_letters, progress.missed) == (7, 3)
        found, after = [], None
        while True:
            page = await rig.webhooks.dead_letters(OWNER, webhook.id, after=after, limit=3)
            found += [letter.id for letter in page.dead_letters]
            if (after := page.next) is None:
                break
        assert found == list(dict.fromkeys(receiver.ids))[3:]
        for cursor in ("", "x" * 14, "1", "-1".zfill(15)):
            with pytest.raises(InvalidRequest, match="page cursor"):
                await rig.webhooks.dead_letters(OWNER, webhook.id, after=cursor, limit=3)


async def test_the_clock_goes_back_after_the_history_was_lost(data_dir: Path) -> None:
    """New events are still later than the cursor."""
    async with receiving() as receiver:
        async with rig_in(data_dir) as rig:
            webhook = await rig.create(receiver)
            rig.record(1)
            await rig.until_delivered(webhook, 1)
        for path in data_dir.glob("history.sqlite3*"):
            path.unlink()
        async with rig_in(data_dir) as rig:
            now = rig.history.recorder.clock()
            rig.history.recorder.clock = lambda: now - 3600
            rig.record(2)
            await rig.until_delivered(webhook, 2)
        assert receiver.numbers == [1, 2]


async def test_only_its_owner_can_read_the_file_and_a_deleted_secret_is_gone(data_dir: Path) -> None:
    def contents() -> bytes:
        return b"".join(path.read_bytes() for path in data_dir.glob(f"{FILE_NAME}*"))

    async with rig_in(data_dir) as rig:
        webhook = await rig.create("https://example.com/")
        assert (data_dir / FILE_NAME).stat().st_mode & 0o777 == 0o600
        assert webhook.secret.encode() in contents()
        await rig.webhooks.delete(OWNER, webhook.id)
        assert webhook.secret.encode() not in contents()

"""The worker's memory on a real file: what is written is there again, and a disk that is full is told."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.worker.conftest import full_disk

from sandlot.domain.capacity.limits import Limits
from sandlot.domain.errors import Conflict, EngineProblem, StorageFull, StorageProblem
from sandlot.domain.recovery import Purpose, SandboxRecord
from sandlot.domain.session import EndReason, LossReport, Session, SessionState
from sandlot.domain.session_states import end, lose
from sandlot.worker.store.database import SCHEMA_VERSION, SessionRecord, Store

SANDBOX = SandboxRecord("sbx_1", "base", Purpose.SESSION)
RECORD = SessionRecord(
    Session(
        id="ses_1",
        environment="base",
        created_at=1.5,
        last_active_at=2.5,
        thread="t-1",
        sandbox_id="sbx_1",
        idle_timeout_s=None,
        limits=Limits(pids=64),
        metadata={"ключ": "värde"},
    ),
    env={"SECRET": "s3cr3t"},
    idempotency_key="key",
    request_digest="digest",
)


@pytest.fixture
async def store(data_dir: Path) -> AsyncIterator[Store]:
    store = Store(data_dir / "worker.db", "w")
    await store.open()
    yield store
    await store.close()


def other(number: int, **changes: object) -> SessionRecord:
    session = replace(RECORD.session, id=f"ses_{number}", thread=f"t-{number}", **changes)
    return SessionRecord(session, env={"A": str(number)})


async def reopened(store: Store, data_dir: Path) -> tuple[list[SessionRecord], list[SandboxRecord]]:
    """What a later life reads, while this one is still open: committed is committed."""
    later = Store(data_dir / "worker.db", "w")
    await later.open()
    try:
        return list(await later.sessions()), list(await later.sandboxes())
    finally:
        await later.close()


async def test_everything_is_there_again(store: Store, data_dir: Path) -> None:
    await store.add_sandbox(SandboxRecord("sbx_0", "base", Purpose.WARM))
    await store.claim(RECORD, SANDBOX)
    sessions, sandboxes = await reopened(store, data_dir)
    assert sessions == [RECORD]
    assert sandboxes == [SandboxRecord("sbx_0", "base", Purpose.WARM), SANDBOX]


async def test_loss_report_is_kept(store: Store, data_dir: Path) -> None:
    lost = replace(RECORD, session=lose(RECORD.session, LossReport(1, 3.0, "gone", ("all",), ("id",))))
    await store.claim(RECORD, SANDBOX)
    await store.save([lost], SandboxRecord("sbx_1", "base", Purpose.REMOVING))
    sessions, sandboxes = await reopened(store, data_dir)
    assert sessions == [lost]
    assert [record.purpose for record in sandboxes] == [Purpose.REMOVING]


async def test_file_is_the_owners_alone(store: Store, data_dir: Path) -> None:
    await store.claim(RECORD, SANDBOX)
    files = list(data_dir.iterdir())
    assert len(files) > 1  # the write-ahead log too
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


async def test_folder_is_made_for_the_owner_alone(data_dir: Path) -> None:
    store = Store(data_dir / "new" / "worker.db", "w")
    await store.open()
    await store.close()
    assert stat.S_IMODE((data_dir / "new").stat().st_mode) == 0o700


async def test_newer_memory_is_refused_and_left_alone(data_dir: Path) -> None:
    path = data_dir / "worker.db"
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    database.close()
    before = path.read_bytes()
    store = Store(path, "w")
    with pytest.raises(EngineProblem, match="newer"):
        await store.open()
    await store.close()
    assert path.read_bytes() == before


async def test_memory_of_another_worker_is_refused(store: Store, data_dir: Path) -> None:
    """Its containers carry that worker's name: under another one none would be found, and none removed."""
    await store.claim(RECORD, SANDBOX)
    other = Store(data_dir / "worker.db", "another")
    with pytest.raises(Conflict, match="SANDLOT_WORKER_ID=w,"):
        await other.open()
    await other.close()
    assert [record.session.id for record in await store.sessions()] == [RECORD.session.id]


async def test_worker_that_has_no_sandbox_may_have_another_name(store: Store, data_dir: Path) -> None:
    other = Store(data_dir / "worker.db", "another")
    await other.open()
    await other.claim(RECORD, SANDBOX)
    await other.close()
    again = Store(data_dir / "worker.db", "w")
    with pytest.raises(Conflict, match="SANDLOT_WORKER_ID=another,"):
        await again.open()
    await again.close()


async def test_memory_from_before_names_were_kept_is_taken(store: Store, data_dir: Path) -> None:
    await store.claim(RECORD, SANDBOX)
    await store.close()
    with sqlite3.connect(data_dir / "worker.db") as database:
        database.execute("DROP TABLE owner")
    database.close()
    later = Store(data_dir / "worker.db", "w")
    await later.open()
    assert len(await later.sessions()) == 1
    await later.close()


async def test_damaged_memory_is_told_as_such(data_dir: Path) -> None:
    (data_dir / "worker.db").write_bytes(b"this was a database once" * 1000)
    store = Store(data_dir / "worker.db", "w")
    with pytest.raises(EngineProblem, match=r"worker\.db"):
        await store.open()
    await store.close()


async def test_memory_that_cannot_be_made_is_told_as_such(data_dir: Path) -> None:
    (data_dir / "file").touch()
    store = Store(data_dir / "file" / "worker.db", "w")
    with pytest.raises(EngineProblem, match=r"worker\.db"):
        await store.open()
    await store.close()


async def test_claim_writes_both_or_neither(store: Store, data_dir: Path) -> None:
    await store.claim(RECORD, SANDBOX)
    rival = replace(other(2), session=replace(other(2).session, thread="t-1"))
    with pytest.raises(Conflict):  # the sandbox's row is written before it fails
        await store.claim(rival, SandboxRecord("sbx_2", "base", Purpose.SESSION))
    assert await reopened(store, data_dir) == ([RECORD], [SANDBOX])


async def test_one_key_has_one_session(store: Store, data_dir: Path) -> None:
    await store.claim(RECORD, SANDBOX)
    with pytest.raises(Conflict):
        await store.save([replace(other(2), idempotency_key="key")])
    assert (await reopened(store, data_dir))[0] == [RECORD]


async def test_activity_is_written_and_the_rest_stays(store: Store, data_dir: Path) -> None:
    await store.claim(RECORD, SANDBOX)
    touched = replace(RECORD.session, last_active_at=77.0)
    await store.save_activity([touched, replace(touched, id="ses_unknown")])
    assert (await reopened(store, data_dir))[0] == [replace(RECORD, session=touched)]


async def test_ended_session_loses_its_variables(store: Store, data_dir: Path) -> None:
    await store.claim(RECORD, SANDBOX)
    ended = replace(RECORD, session=end(RECORD.session, EndReason.DELETED, 9.0))
    await store.save([ended])
    ((record,), _) = await reopened(store, data_dir)
    assert record.env == {}
    assert record == replace(ended, env={})


async def test_ended_ones_are_forgotten_by_their_age(store: Store) -> None:
    for number, ended_at in ((1, 10.0), (2, 20.0), (3, None)):
        record = other(number)
        if ended_at is not None:
            record = replace(record, session=end(record.session, EndReason.IDLE, ended_at))
        await store.save([record])
    await store.forget_ended(before=20.0, keep=100)
    assert {record.session.id for record in await store.sessions()} == {"ses_2", "ses_3"}


async def test_of_many_ended_ones_the_newest_are_kept(store: Store) -> None:
    for number in range(1, 6):
        record = other(number)
        await store.save([replace(record, session=end(record.session, EndReason.IDLE, float(number)))])
    await store.save([other(6)])
    await store.forget_ended(before=0.0, keep=2)
    assert {record.session.id for record in await store.sessions()} == {"ses_4", "ses_5", "ses_6"}
    await store.forget_ended(before=0.0, keep=2)
    assert len(list(await store.sessions())) == 3


async def test_forgetting(store: Store) -> None:
    await store.claim(RECORD, SANDBOX)
    await store.forget_session("ses_1")
    await store.forget_sandbox("sbx_1")
    await store.forget_sandbox("sbx_1")
    assert (list(await store.sessions()), list(await store.sandboxes())) == ([], [])


async def test_thread_may_have_a_new_session_after_one_that_ended(store: Store) -> None:
    await store.save([replace(RECORD, session=end(RECORD.session, EndReason.DELETED, 9.0))])
    await store.save([replace(other(2), session=replace(other(2).session, thread="t-1"))])
    states = {record.session.id: record.session.state for record in await store.sessions()}
    assert states == {"ses_1": SessionState.ENDED, "ses_2": SessionState.ACTIVE}


async def test_writes_happen_in_the_order_in_which_they_were_asked_for(store: Store) -> None:
    writes = [
        store.save([replace(RECORD, session=replace(RECORD.session, last_active_at=float(n)))])
        for n in range(50)
    ]
    await asyncio.gather(*writes)
    ((record),) = await store.sessions()
    assert record.session.last_active_at == 49.0


async def test_write_that_has_begun_is_finished_though_its_caller_gave_up(store: Store) -> None:
    goes_on = threading.Event()
    before = asyncio.create_task(store._on_thread(lambda: goes_on.wait(20)))
    writing = asyncio.create_task(store.claim(RECORD, SANDBOX))
    await asyncio.sleep(0.01)
    writing.cancel()  # while it waits for its turn
    goes_on.set()
    await before
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert [record.session.id for record in await store.sessions()] == ["ses_1"]


class TestFullDisk:
    async def test_is_told_and_got_over(self, store: Store) -> None:
        await store.claim(RECORD, SANDBOX)
        with full_disk(), pytest.raises(StorageFull, match="disk") as caught:
            await store.save([other(2, metadata={"k": "v" * 10_000})])
        assert caught.value.retryable
        assert isinstance(caught.value.__cause__, sqlite3.Error)
        await store.save([other(3)])
        assert {record.session.id for record in await store.sessions()} == {"ses_1", "ses_3"}

    async def test_half_a_claim_is_not_written(self, store: Store, data_dir: Path) -> None:
        large = other(2, metadata={"k": "v" * 10_000})
        with full_disk(), pytest.raises(StorageFull):
            await store.claim(large, SandboxRecord("sbx_2", "base", Purpose.SESSION))
        assert await reopened(store, data_dir) == ([], [])

    async def test_reading_still_works(self, store: Store) -> None:
        await store.claim(RECORD, SANDBOX)
        with full_disk():
            with pytest.raises(StorageFull):
                await store.save([other(2)])
            assert list(await store.sessions()) == [RECORD]


class TestOtherProblems:
    async def test_r10_a_broken_file_is_no_full_disk(self, store: Store, data_dir: Path) -> None:
        await store.claim(RECORD, SANDBOX)

        def broken() -> None:
            assert store._database is not None
            store._database.execute("PRAGMA query_only = ON")

        await store._on_thread(broken)
        with pytest.raises(StorageProblem, match="cannot write its records") as caught:
            await store.save([other(2)])
        assert not isinstance(caught.value, StorageFull)
        assert not caught.value.retryable

    async def test_r10_a_file_that_somebody_holds_is_tried_again(self, store: Store, data_dir: Path) -> None:
        def impatient() -> None:
            assert store._database is not None
            store._database.execute("PRAGMA busy_timeout = 10")

        await store._on_thread(impatient)
        held = sqlite3.connect(data_dir / "worker.db", isolation_level=None)
        held.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageProblem, match="locked") as caught:
            await store.save([other(2)])
        assert caught.value.retryable
        held.close()
        await store.save([other(2)])


def _on_disk(data_dir: Path) -> bytes:
    return b"".join(path.read_bytes() for path in data_dir.iterdir() if path.is_file())


@pytest.mark.parametrize("how", ["ended", "forgotten"])
async def test_s11_variables_of_a_session_that_ended_are_nowhere_on_disk(
    store: Store, data_dir: Path, how: str
) -> None:
    secret = b"hunter2" * 2000  # more than a page holds
    await store.claim(replace(RECORD, env={"TOKEN": secret.decode()}), SANDBOX)
    await store.save([other(2)])
    assert b"hunter2" in _on_disk(data_dir)
    if how == "ended":
        await store.save([replace(RECORD, session=end(RECORD.session, EndReason.DELETED, 9.0))])
    else:
        await store.forget_session(RECORD.session.id)
    await store.scrub()
    assert b"hunter2" not in _on_disk(data_dir)

"""Receivers that are down, slow, wrong or redirecting: nothing is lost, and nothing comes with a new id."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.webhooks.receiver import (
    HASTY,
    PATIENT,
    Receiver,
    Request,
    receiving,
    rig_in,
    status,
)
from tests.unit.worker.conftest import Scene

from sandlot.api.responses.json import encode_json
from sandlot.domain.callers.principal import OWNER, Principal
from sandlot.domain.errors import Conflict, NotFound, StorageFull
from sandlot.domain.execution import ExecRequest
from sandlot.domain.history.events import EventKind
from sandlot.domain.history.query import EventQuery
from sandlot.domain.session import CreateSession
from sandlot.domain.webhooks import webhook as limits
from sandlot.domain.webhooks.webhook import Redelivery
from sandlot.testing.eventually import eventually
from sandlot.worker.webhooks import webhooks as module
from sandlot.worker.webhooks.sender import CheckedConnections

NUMBERS = list(range(20))


async def test_a_workers_events(scene: Scene) -> None:
    """Of the types that were chosen, in order, as /v1/events has them, and signed."""
    worker = await scene.start(webhooks=PATIENT)
    assert worker.webhooks is not None
    async with receiving() as receiver:
        await worker.create_session(CreateSession())  # before the webhook
        webhook = await worker.webhooks.create(
            OWNER, receiver.url, ["exec.started", "session.ended", "session.created"]
        )
        before = time.time()
        session = (await worker.create_session(CreateSession(env={"TOKEN": "hunter22"}))).session
        await worker.execute(session.id, ExecRequest(command="login hunter22", exec_id="e1"))
        await worker.delete_session(session.id)
        stranger = worker.acting_for(Principal("stranger"))
        await stranger.create_session(CreateSession())
        await eventually(lambda: len(receiver.requests) == 3, 20, lambda: str(receiver.requests))
        events = (await worker.list_events(EventQuery(session_id=session.id))).events
        chosen = [event for event in events if event.kind in webhook.events]
        assert [request.data["id"] for request in receiver.requests] == [event.id for event in chosen]
        for request, event in zip(receiver.requests, chosen, strict=True):
            assert request.path == "/events"
            assert request.is_signed_with(webhook.secret)
            assert before - 1 <= int(request.headers["webhook-timestamp"]) <= time.time()
            assert request.headers["content-type"] == "application/json"
            body = json.loads(request.body)
            assert set(body) == {"type", "timestamp", "data"}
            assert (body["type"], body["data"]["kind"]) == (event.kind, event.kind)
            assert body["timestamp"].endswith("Z")
            assert request.data == json.loads(encode_json(event))
        assert receiver.requests[1].data["details"]["command"] == "login ***"
        assert len(set(receiver.ids)) == 3


async def test_a_receiver_that_is_down_for_a_while(data_dir: Path) -> None:
    receiver = Receiver()
    await receiver.start()
    async with rig_in(data_dir) as rig:
        webhook = await rig.create(receiver)
        rig.record(*NUMBERS[:5])
        await rig.until_delivered(webhook, 5)
        await receiver.stop()
        rig.record(*NUMBERS[5:])
        progress = await rig.until(webhook, lambda found: found.attempts >= 3)
        assert progress.state == "failing"
        assert "Connection refused" in progress.error
        await receiver.start()
        progress = await rig.until_delivered(webhook, 20)
    await receiver.stop()
    assert receiver.numbers == NUMBERS
    assert len(set(receiver.ids)) == 20
    assert (progress.state, progress.error, progress.missed, progress.dead_letters) == ("active", "", 0, 0)


async def test_a_receiver_that_fails_each_time_at_first(data_dir: Path) -> None:
    """It gets each event again with the id that it has seen, and in order."""
    seen: Counter[str] = Counter()

    async def at_the_third(request: Request) -> bytes:
        seen[request.id] += 1
        return status(503 if seen[request.id] < 3 else 200)

    async with rig_in(data_dir) as rig, receiving(at_the_third) as receiver:
        webhook = await rig.create(receiver)
        rig.record(*NUMBERS)
        await rig.until_delivered(webhook, 20)
    assert receiver.numbers == [number for number in NUMBERS for _ in range(3)]
    assert set(seen.values()) == {3}
    assert len(seen) == 20
    # A new attempt is signed anew, with its own time.
    assert all(request.is_signed_with(webhook.secret) for request in receiver.requests)


async def test_an_answer_that_was_lost_is_a_repetition_with_the_same_id(data_dir: Path) -> None:
    async def hang_up_first(request: Request) -> bytes:
        return status(200) if receiver.ids.count(request.id) > 1 else b""

    async with rig_in(data_dir) as rig, receiving(hang_up_first) as receiver:
        webhook = await rig.create(receiver)
        rig.record(1, 2)
        await rig.until_delivered(webhook, 2)
    assert receiver.numbers == [1, 1, 2, 2]
    assert len(set(receiver.ids)) == 2


async def test_a_slow_receiver_delays_no_command_and_no_other_webhook(scene: Scene) -> None:
    """The slow ones hold their requests for as long as the test runs."""
    ended = asyncio.Event()

    async def never(_: Request) -> bytes:
        await ended.wait()
        return b""

    worker = await scene.start(webhooks=replace(PATIENT, timeout_s=3600.0))
    assert worker.webhooks is not None
    async with receiving(never) as slow, receiving() as quick:
        for _ in range(9):
            await worker.webhooks.create(OWNER, slow.url, ["exec.started", "exec.ended"])
        await worker.webhooks.create(OWNER, quick.url, ["exec.ended"])
        session = (await worker.create_session(CreateSession())).session
        for number in range(50):
            await worker.execute(session.id, ExecRequest(command="done", exec_id=f"e{number}"))
        await eventually(lambda: len(quick.requests) == 50, 20)
        await eventually(lambda: slow.connections == 9, 20)
        assert len(slow.requests) == 9, "one at a time for each webhook"
        ended.set()
        await worker.close()


async def test_a_slow_receiver_times_out(data_dir: Path) -> None:
    ended = asyncio.Event()

    async def drip(_: Request) -> bytes:
        """Bytes all the time, and never an answer: no single step takes long."""
        for writer in receiver._open:
            writer.write(b"HTTP/1.1 200 OK\r\n")
            while not ended.is_set():
                writer.write(b"x: y\r\n")
                await asyncio.sleep(0.01)
        return b""

    options = replace(HASTY, timeout_s=0.3)
    async with rig_in(data_dir, options) as rig, receiving(drip) as receiver:
        webhook = await rig.create(receiver)
        rig.record(1)
        progress = await rig.until(webhook, lambda found: found.error)
        assert progress.error == "The receiver did not answer within 0.3 s."
        ended.set()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (status(500), "The receiver answered 500."),
        (status(404), "The receiver answered 404."),
        (b"", "failed|speak HTTP"),
        (b"SSH-2.0-OpenSSH_9\r\n", "speak HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 300_000, "speak HTTP"),
    ],
    ids=["500", "404", "hangs up", "not http", "endless head"],
)
async def test_a_wrong_receiver_makes_dead_letters(data_dir: Path, answer: bytes, error: str) -> None:
    """After the last attempt the next event has its turn. Nothing is lost: redelivered with the same ids."""
    wrong = True

    async def answers(_: Request) -> bytes:
        return answer if wrong else status(200)

    async with rig_in(data_dir, HASTY) as rig, receiving(answers) as receiver:
        webhook = await rig.create(receiver)
        rig.record(1, 2)
        progress = await rig.until(webhook, lambda found: found.dead_letters == 2)
        assert (progress.state, progress.delivered, progress.attempts) == ("failing", 0, 0)
        letters = await rig.dead_letters(webhook)
        assert [letter.attempts for letter in letters] == [3, 3]
        assert {letter.kind for letter in letters} == {"session.ended"}
        for letter in letters:
            assert any(part in letter.error for part in error.split("|")), letter.error
            assert "127.0.0.1" not in letter.error
        tried = list(receiver.ids)
        assert Counter(tried) == {letter.id: 3 for letter in letters}
        # Still wrong: they stay.
        assert await rig.webhooks.redeliver(OWNER, webhook.id) == Redelivery(2)

        async def tried_again() -> bool:
            return [letter.attempts for letter in await rig.dead_letters(webhook)] == [4, 4]

        await eventually(tried_again, 20)
        wrong = False
        await rig.webhooks.redeliver(OWNER, webhook.id)
        progress = await rig.until_delivered(webhook, 2)
        assert (progress.state, progress.dead_letters) == ("active", 0)
        assert receiver.ids[-2:] == [letter.id for letter in letters]
        assert receiver.numbers[-2:] == [1, 2]
        assert set(receiver.ids) == set(tried)
        rig.record(3)
        await rig.until_delivered(webhook, 3)


async def test_dead_letters_are_tried_while_an_event_waits_for_its_retry(data_dir: Path) -> None:
    accepts: set[int] = set()

    async def answers(request: Request) -> bytes:
        return status(200 if request.number in accepts else 500)

    schedule = replace(HASTY.schedule, attempts=2)
    async with rig_in(data_dir, replace(HASTY, schedule=schedule)) as rig, receiving(answers) as receiver:
        webhook = await rig.create(receiver)
        rig.record(1)
        await rig.until(webhook, lambda found: found.dead_letters == 1)
    waiting = replace(schedule, first_s=3600.0, longest_s=3600.0)
    async with (
        rig_in(data_dir, replace(HASTY, schedule=waiting)) as rig,
        receiving(answers, port=receiver.port),
    ):
        rig.record(2)
        await rig.until(webhook, lambda found: found.attempts == 1)
        accepts.add(1)
        await rig.webhooks.redeliver(OWNER, webhook.id)
        progress = await rig.until_delivered(webhook, 1)
        assert (progress.dead_letters, progress.attempts) == (0, 1)


async def test_a_large_answer_is_not_read(data_dir: Path) -> None:
    async def large(_: Request) -> bytes:
        return status(200, body=b"x" * 50_000_000)

    async with rig_in(data_dir) as rig, receiving(large) as receiver:
        webhook = await rig.create(receiver)
        rig.record(1, 2)
        await rig.until_delivered(webhook, 2)
        assert receiver.connections == 2, "a connection with an answer in it is not used again"


async def test_events_in_a_row_use_one_connection(data_dir: Path) -> None:
    async with rig_in(data_dir) as rig, receiving() as receiver:
        webhook = await rig.create(receiver)
        rig.record(*NUMBERS)
        await rig.until_delivered(webhook, 20)
        assert receiver.connections < 5


async def test_a_redirect_to_a_private_address_is_not_followed(data_dir: Path) -> None:
    async with receiving() as secret:

        async def redirect(_: Request) -> bytes:
            return status(307, f"location: {secret.url}")

        async with rig_in(data_dir, HASTY) as rig, receiving(redirect) as receiver:
            webhook = await rig.create(receiver)
            rig.record(1)
            await rig.until(webhook, lambda found: found.dead_letters == 1)
            [letter] = await rig.dead_letters(webhook)
            assert letter.error.startswith(f"The receiver answered 307 and redirects to {secret.url}.")
            assert "not followed" in letter.error
            assert secret.connections == 0


async def test_a_receiver_that_is_gone_disables_its_webhook(data_dir: Path) -> None:
    async def gone(_: Request) -> bytes:
        return status(410)

    async with rig_in(data_dir) as rig, receiving(gone) as receiver:
        webhook = await rig.create(receiver)
        rig.record(1)
        progress = await rig.until(webhook, lambda found: found.state == "disabled")
        assert "410" in progress.error
        rig.record(2)
        await rig.history.page(OWNER, EventQuery())
        with pytest.raises(Conflict, match="disabled"):
            await rig.webhooks.redeliver(OWNER, webhook.id)
    async with rig_in(data_dir) as rig, receiving(gone, port=receiver.port) as again:
        other = await rig.create(again)
        rig.record(3)
        await rig.until(other, lambda found: found.state == "disabled")
        assert again.numbers == [3]
    assert receiver.numbers == [1]


async def test_a_webhook_is_its_tenants(data_dir: Path) -> None:
    ada, bob = Principal("acme"), Principal("bobs")
    async with rig_in(data_dir) as rig, receiving() as receiver, receiving() as other:
        hers = await rig.create(receiver, caller=ada)
        his = await rig.create(other, caller=bob)
        rig.record(1, 3, tenant="acme")
        rig.record(2, tenant="bobs")
        await rig.until_delivered(hers, 2)
        await rig.until_delivered(his, 1)
        assert (receiver.numbers, other.numbers) == ([1, 3], [2])
        assert [webhook.id for webhook, _ in await rig.webhooks.list(ada)] == [hers.id]
        for webhook_id in (his.id, "whk_" + "0" * 32, "x"):
            for call in (
                rig.webhooks.get(ada, webhook_id),
                rig.webhooks.delete(ada, webhook_id),
                rig.webhooks.redeliver(ada, webhook_id),
                rig.webhooks.dead_letters(ada, webhook_id, after=None, limit=1),
            ):
                with pytest.raises(NotFound):
                    await call
        await rig.webhooks.delete(bob, his.id)
        rig.record(4, tenant="bobs")
        rig.record(5, tenant="acme")
        await rig.until_delivered(hers, 3)
        assert other.numbers == [2]


async def test_there_is_a_bound(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig_in(data_dir) as rig:
        for _ in range(10):
            await rig.create("https://example.com/x")
        with pytest.raises(Conflict, match="10 webhooks"):
            await rig.create("https://example.com/x")
        monkeypatch.setattr(limits, "MAX_WEBHOOKS", 11)
        await rig.create("https://example.com/x", caller=Principal("acme"))
        with pytest.raises(Conflict, match="11 webhooks"):
            await rig.create("https://example.com/x", caller=Principal("bobs"))


async def test_a_webhook_goes_on_after_a_failure_of_its_own(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DISK_RETRY_S", 0.01)
    async with rig_in(data_dir) as rig, receiving() as receiver:
        webhook = await rig.create(receiver)
        real, failures = rig.history.next_event, iter([RuntimeError("a bug"), OSError("a disk")])

        async def failing(*asked: object) -> object:
            if (failure := next(failures, None)) is not None:
                raise failure
            return await real(*asked)  # type: ignore[arg-type]

        monkeypatch.setattr(rig.history, "next_event", failing)
        rig.record(1, 2)
        await rig.until_delivered(webhook, 2)
        assert receiver.numbers == [1, 2]


async def test_other_kinds_are_passed_over(data_dir: Path) -> None:
    async with rig_in(data_dir) as rig, receiving() as receiver:
        webhook = await rig.create(receiver, "session.lost")
        for number in range(300):
            kind = EventKind.SESSION_LOST if number % 100 == 50 else EventKind.FILE_WRITTEN
            rig.record(number, kind=kind)
        await rig.until_delivered(webhook, 3)
        assert receiver.numbers == [50, 150, 250]


async def test_an_accepted_delivery_is_not_repeated_while_the_disk_takes_nothing(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DISK_RETRY_S", 0.01)
    async with rig_in(data_dir) as rig, receiving() as receiver:
        webhook = await rig.create(receiver)
        real, failures = rig.webhooks._store.delivered, iter([StorageFull("full"), StorageFull("full")])

        async def full(webhook_id: str, time_us: int, at: float) -> None:
            if (failure := next(failures, None)) is not None:
                raise failure
            await real(webhook_id, time_us, at)

        monkeypatch.setattr(rig.webhooks._store, "delivered", full)
        rig.record(1, 2)
        await rig.until_delivered(webhook, 2)
        assert receiver.numbers == [1, 2]


async def test_an_error_of_our_own_counts_as_a_failure(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event that cannot be sent must not hold up the webhook for ever."""
    real = CheckedConnections.connect_tcp
    broken = True

    async def connect(*asked: Any, **more: Any) -> Any:
        if broken:
            raise RuntimeError("a bug")
        return await real(*asked, **more)

    monkeypatch.setattr(CheckedConnections, "connect_tcp", connect)
    async with rig_in(data_dir, HASTY) as rig, receiving() as receiver:
        webhook = await rig.create(receiver)
        rig.record(1)
        await rig.until(webhook, lambda found: found.dead_letters == 1)
        assert "could not send" in (await rig.dead_letters(webhook))[0].error
        broken = False
        rig.record(2)
        await rig.until_delivered(webhook, 1)
        assert receiver.numbers == [2]


async def test_attempts_at_once_are_bounded(data_dir: Path) -> None:
    held, open_now, most = asyncio.Event(), 0, 0

    async def hold(_: Request) -> bytes:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        await held.wait()
        await asyncio.sleep(0.01)  # the others would come now
        open_now -= 1
        return status(200)

    async with rig_in(data_dir, replace(PATIENT, at_once=2)) as rig, receiving(hold) as receiver:
        webhooks = [await rig.create(receiver) for _ in range(6)]
        rig.record(1)
        await eventually(lambda: open_now == 2, 20)
        held.set()
        for webhook in webhooks:
            await rig.until_delivered(webhook, 1)
        assert most == 2
        assert len(receiver.requests) == len(set(receiver.ids)) == 6


async def test_a_flood_of_events_gets_a_bounded_share_of_the_server(data_dir: Path) -> None:
    """However many webhooks and events there are, so many deliveries a second begin, and no more."""
    begun: list[float] = []

    async def note(_: Request) -> bytes:
        begun.append(time.monotonic())
        return status(200)

    async with rig_in(data_dir, replace(PATIENT, per_s=20.0)) as rig, receiving(note) as receiver:
        webhooks = [await rig.create(receiver) for _ in range(5)]
        before = time.monotonic()
        rig.record(*range(6))
        for webhook in webhooks:
            await rig.until_delivered(webhook, 6)
        assert len(begun) == 30
        assert begun[-1] - before >= 29 / 20
        # In turn: nobody waits until another one has sent everything.
        assert {request.number for request in receiver.requests[:5]} == {0}

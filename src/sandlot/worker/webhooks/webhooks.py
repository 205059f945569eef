"""``WorkerWebhooks``: the webhooks of a server, each a cursor over the history with a task that follows it.

No command waits for a delivery: the tasks read what the history has on disk. A cursor moves only after the
receiver has accepted the event, or after the event is a dead letter. So a server that is killed goes on
where it was, and what it repeats has the same id.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from sandlot.domain.callers.principal import Principal
from sandlot.domain.errors import StorageProblem
from sandlot.domain.history.events import Event, EventKind
from sandlot.domain.history.positions import parse_event_id
from sandlot.domain.webhooks.attempts import Outcome, Verdict
from sandlot.domain.webhooks.webhook import (
    DeadLetter,
    DeadLetterPage,
    Progress,
    Redelivery,
    Webhook,
    is_webhook_id,
    letter_cursor,
    new_webhook,
    no_webhook,
    parse_letter_cursor,
    receiver_gone,
)
from sandlot.worker.history.history import History
from sandlot.worker.history.store import OldEvent
from sandlot.worker.webhooks.options import WebhookOptions
from sandlot.worker.webhooks.sender import Sender
from sandlot.worker.webhooks.store import WebhookStore

log = structlog.get_logger("sandlot.webhooks")

# After a read or a write that failed, such as one on a full disk.
DISK_RETRY_S: Final = 5.0


@dataclass(slots=True, eq=False)
class _Feed:
    """A webhook while it is served. ``wake``: set when there may be something to send. ``redeliver``: set
    when dead letters are to be tried again, which does not wait for a retry. ``progress``: as the store has
    it, unless it is ``stale``.
    """

    webhook: Webhook
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    redeliver: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    stale: bool = True
    progress: Progress = field(default_factory=lambda: Progress(0))


class WorkerWebhooks:
    """Implements ``Webhooks``, and follows the history as its reader."""

    def __init__(
        self, history: History, folder: Path, options: WebhookOptions, clock: Callable[[], float] = time.time
    ) -> None:
        self._history = history
        self._options = options
        self._store = WebhookStore(folder)
        self._sender = Sender(options)
        self._slots = asyncio.Semaphore(options.at_once)
        self._pace = _Pace(options.per_s)
        self._feeds: dict[str, _Feed] = {}
        self._clock = clock

    async def open(self) -> None:
        """Open the history first."""
        await self._store.open()
        self._history.read_by(self, await self._store.last_us())
        if self._options.shared:
            return  # some may have been deleted meanwhile: ``take`` says which are left
        for webhook, progress in await self._store.all():
            if progress.state != "disabled":
                self._follow(webhook)

    async def take(self, webhooks: Sequence[Webhook]) -> None:
        """Serve these webhooks and no others: a fleet's coordinators decide which ones there are."""
        known = {webhook.id: progress for webhook, progress in await self._store.all()}
        for webhook_id in known.keys() - {webhook.id for webhook in webhooks}:
            await self._stop(webhook_id)
            await self._store.delete(webhook_id)
        for webhook in webhooks:
            progress = known.get(webhook.id)
            if progress is None:
                # From its creation on, also if this worker learns of it later. Never beyond the newest
                # event, in case the coordinator's clock is ahead of this one.
                begin_us = min(int(webhook.created_at * 1_000_000), self._history.newest_us)
                await self._store.add(webhook, begin_us)
            if webhook.id not in self._feeds and (progress is None or progress.state != "disabled"):
                self._follow(webhook)

    async def stop(self) -> None:
        """Send nothing more. The history can be closed after this."""
        for webhook_id in list(self._feeds):
            await self._stop(webhook_id)
        await self._sender.close()

    async def close(self) -> None:
        """Close the history first: it may delete events until its end, and those are counted here."""
        self._history.read_by(None)
        await self._store.close()

    # --- for callers --------------------------------------------------------------------------

    async def create(self, caller: Principal, url: str, events: Sequence[str]) -> Webhook:
        webhook = new_webhook(caller, self._clock(), url=url, events=events, allowed=self._options.allowed)
        await self._store.add(webhook, self._history.newest_us)
        self._follow(webhook)
        return webhook

    async def list(self, caller: Principal) -> Sequence[tuple[Webhook, Progress]]:
        return await self._store.all(caller.tenant)

    async def get(self, caller: Principal, webhook_id: str) -> tuple[Webhook, Progress]:
        known = await self._store.get(webhook_id) if is_webhook_id(webhook_id) else None
        if known is None or known[0].tenant != caller.tenant:
            raise no_webhook()
        return known

    async def delete(self, caller: Principal, webhook_id: str) -> None:
        webhook, progress = await self.get(caller, webhook_id)
        try:
            await self._stop(webhook_id)
            await self._store.delete(webhook_id)
        except BaseException:
            if progress.state != "disabled":
                self._follow(webhook)
            raise

    async def dead_letters(
        self, caller: Principal, webhook_id: str, *, after: str | None, limit: int
    ) -> DeadLetterPage:
        await self.get(caller, webhook_id)
        letters = await self._store.dead_letters(webhook_id, parse_letter_cursor(after), limit + 1)
        more = len(letters) > limit
        return DeadLetterPage(letters[:limit], letter_cursor(letters[limit - 1].time_us) if more else None)

    async def redeliver(self, caller: Principal, webhook_id: str) -> Redelivery:
        _, progress = await self.get(caller, webhook_id)
        if progress.state == "disabled":
            raise receiver_gone()
        count = await self._store.mark_due(webhook_id)
        if (feed := self._feeds.get(webhook_id)) is not None:
            feed.stale = True
            feed.redeliver.set()
            feed.wake.set()
        return Redelivery(count)

    # --- for the history ----------------------------------------------------------------------

    def recorded(self, tenants: Collection[str]) -> None:
        for feed in self._feeds.values():
            if feed.webhook.tenant in tenants:
                feed.wake.set()

    async def deleting(self, events: Sequence[OldEvent]) -> None:
        tenants = {feed.webhook.tenant for feed in self._feeds.values()}
        if any(event[1] in tenants for event in events):
            await self._store.skip(events)
            for feed in self._feeds.values():
                feed.stale = True

    # --- deliveries ---------------------------------------------------------------------------

    def _follow(self, webhook: Webhook) -> None:
        feed = _Feed(webhook)
        self._feeds[webhook.id] = feed
        feed.task = asyncio.create_task(self._serve(feed), name=f"webhook {webhook.id}")

    async def _stop(self, webhook_id: str) -> None:
        feed = self._feeds.pop(webhook_id, None)
        if feed is not None and feed.task is not None:
            feed.task.cancel()
            await asyncio.wait({feed.task})

    async def _serve(self, feed: _Feed) -> None:
        while True:
            # Before looking, so that nothing is missed.
            feed.wake.clear()
            feed.redeliver.clear()
            try:
                if not await self._step(feed):
                    self._feeds.pop(feed.webhook.id, None)
                    return
            except StorageProblem as error:
                log.warning("webhooks wait for the disk", webhook=feed.webhook.id, error=error.message)
                await asyncio.sleep(DISK_RETRY_S)
            except Exception:
                # A task that one failure ended would send nothing more, and nobody would notice.
                log.exception("cannot serve a webhook; will retry", webhook=feed.webhook.id)
                await asyncio.sleep(DISK_RETRY_S)

    async def _step(self, feed: _Feed) -> bool:
        """One attempt, or a wait for the next one. Returns whether there can be another."""
        webhook = feed.webhook
        if feed.stale:
            feed.stale = False
            known = await self._store.get(webhook.id)
            if known is None:
                return False
            feed.progress = known[1]
            if (letter := await self._store.next_due(webhook.id)) is not None:
                feed.stale = True  # there may be another one
                return await self._redeliver(webhook, letter)
        progress = feed.progress
        event = await self._history.next_event(webhook.tenant, _kinds(webhook), progress.cursor_us)
        if event is None:
            await feed.wake.wait()
            return True
        wait_s = 0.0 if progress.retry_at is None else progress.retry_at - self._clock()
        if 0 < wait_s <= 2 * self._options.schedule.longest_s:  # longer: the clock was set back
            await _wait(feed.redeliver, wait_s)
            return True
        return await self._deliver(feed, event)

    async def _deliver(self, feed: _Feed, event: Event) -> bool:
        webhook, progress = feed.webhook, feed.progress
        body, delivery_id = _body(webhook.visible(event)), webhook.delivery_id(event.id)
        time_us = parse_event_id(event.id)[0]
        outcome = await self._attempt(webhook, delivery_id, body)
        now = self._clock()
        if outcome.verdict is Verdict.DELIVERED:
            await _kept(lambda: self._store.delivered(webhook.id, time_us, now))
            feed.progress = Progress(time_us)
            return True
        if outcome.verdict is Verdict.GONE:
            return await self._disable(webhook, outcome)
        attempts = progress.attempts + 1
        delay_s = self._options.schedule.delay_s(attempts, random.random())  # noqa: S311  spreads load
        if delay_s is not None:
            await _kept(lambda: self._store.failed(webhook.id, attempts, now + delay_s, outcome.error))
            feed.progress = Progress(progress.cursor_us, attempts=attempts, retry_at=now + delay_s)
            return True
        letter = DeadLetter(
            delivery_id, time_us, event.id, event.kind, attempts, outcome.error, now, body=body
        )
        log.warning("gave up a webhook's delivery", webhook=webhook.id, delivery=letter.id)
        await _kept(lambda: self._store.give_up(webhook.id, letter))
        feed.progress = Progress(time_us)
        return True

    async def _redeliver(self, webhook: Webhook, letter: DeadLetter) -> bool:
        outcome = await self._attempt(webhook, letter.id, letter.body)
        now = self._clock()
        if outcome.verdict is Verdict.GONE:
            return await self._disable(webhook, outcome)
        if outcome.verdict is Verdict.DELIVERED:
            await _kept(lambda: self._store.redelivered(webhook.id, letter, now))
        else:
            await _kept(lambda: self._store.failed_again(webhook.id, letter, now, outcome.error))
        return True

    async def _disable(self, webhook: Webhook, outcome: Outcome) -> bool:
        log.warning("a webhook is disabled: its receiver is gone", webhook=webhook.id)
        await _kept(lambda: self._store.disable(webhook.id, self._clock(), outcome.error))
        return False

    async def _attempt(self, webhook: Webhook, delivery_id: str, body: bytes) -> Outcome:
        async with self._slots:
            await self._pace.turn()
            return await self._sender.send(webhook, delivery_id, body, self._clock)


class _Pace:
    """Lets at most ``per_s`` go on in each second, evenly. Others wait for their turn, first come first."""

    def __init__(self, per_s: float) -> None:
        self._every_s = 1 / per_s
        self._next_at = 0.0

    async def turn(self) -> None:
        now = asyncio.get_running_loop().time()
        self._next_at = max(now, self._next_at + self._every_s)
        await asyncio.sleep(self._next_at - now)


async def _kept(write: Callable[[], Awaitable[None]]) -> None:
    """Write until the disk takes it: what the receiver answered must not be asked for again."""
    while True:
        try:
            return await write()
        except StorageProblem as error:
            log.warning("a webhook waits for the disk", error=error.message)
            await asyncio.sleep(DISK_RETRY_S)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _kinds(webhook: Webhook) -> tuple[EventKind, ...]:
    """Without those of a newer version, which this one does not record."""
    return tuple(kind for kind in EventKind if kind.value in webhook.events)


def _body(event: Event) -> bytes:
    at = datetime.fromtimestamp(event.at, UTC).isoformat().replace("+00:00", "Z")
    data: dict[str, Any] = {"type": event.kind, "timestamp": at, "data": event}
    return msgspec.json.encode(data)

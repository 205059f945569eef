"""``FleetWebhooks``: a fleet's webhooks. Coordinators keep the list, and each worker sends what it recorded.

What the workers have delivered and given up stays with them. The coordinator asks all of them, and names
those that do not answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from sandlot.domain.callers.principal import Principal
from sandlot.domain.network.addresses import Networks
from sandlot.domain.webhooks.shared import SharedWebhooks
from sandlot.domain.webhooks.webhook import (
    MAX_DEAD_LETTERS,
    DeadLetterPage,
    Progress,
    Redelivery,
    Webhook,
    letter_cursor,
    new_webhook,
    no_webhook,
    parse_letter_cursor,
)
from sandlot.fleet.coordinator.asked_workers import AskedWorkers


class FleetWebhooks:
    """Implements ``Webhooks``. ``allowed``: addresses that may be sent to although they are not public."""

    def __init__(
        self,
        shared: SharedWebhooks,
        asked: AskedWorkers,
        allowed: Networks = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._shared = shared
        self._asked = asked
        self._allowed = allowed
        self._clock = clock
        self._known: Sequence[Webhook] = ()
        self._mark = ""

    async def create(self, caller: Principal, url: str, events: Sequence[str]) -> Webhook:
        webhook = new_webhook(caller, self._clock(), url=url, events=events, allowed=self._allowed)
        await self._shared.add(webhook)
        return webhook

    async def list(self, caller: Principal) -> Sequence[tuple[Webhook, Progress]]:
        mine = [webhook for webhook in await self._current() if webhook.tenant == caller.tenant]
        if not mine:
            return []
        answers = await self._asked.ask(await self._asked.all(), caller, lambda link: link.list_webhooks())
        by_id: dict[str, list[Progress]] = {}
        for answer in answers.values():
            for body in answer or ():
                by_id.setdefault(body.id, []).append(body.to_progress())
        missing = _missing(answers)
        return [(webhook, total(by_id.get(webhook.id, []), missing)) for webhook in mine]

    async def get(self, caller: Principal, webhook_id: str) -> tuple[Webhook, Progress]:
        await self._own(caller, webhook_id)
        for known in await self.list(caller):
            if known[0].id == webhook_id:
                return known
        raise no_webhook()  # deleted a moment ago

    async def delete(self, caller: Principal, webhook_id: str) -> None:
        await self._shared.remove(await self._own(caller, webhook_id))

    async def dead_letters(
        self, caller: Principal, webhook_id: str, *, after: str | None, limit: int
    ) -> DeadLetterPage:
        await self._own(caller, webhook_id)
        parse_letter_cursor(after)
        each = min(limit, MAX_DEAD_LETTERS)
        answers = await self._asked.ask(
            await self._asked.all(),
            caller,
            lambda link: link.list_dead_letters(webhook_id, after, each),
        )
        pages = [answer for answer in answers.values() if answer is not None]
        found = sorted(
            (letter.to_domain() for page in pages for letter in page.dead_letters),
            key=lambda letter: (letter.time_us, letter.event_id),
        )
        more = any(page.next is not None for page in pages) or len(found) > limit
        if not more:
            return DeadLetterPage(found, None, _missing(answers))
        # Beyond the last one of a worker that has more, others of its may belong between.
        known_us = min(
            (page.dead_letters[-1].to_domain().time_us for page in pages if page.next is not None),
            default=found[-1].time_us,
        )
        last_us = min(known_us, found[min(limit, len(found)) - 1].time_us)
        # Those of the same microsecond stay together, because the cursor is a time.
        page_of = [letter for letter in found if letter.time_us <= last_us]
        return DeadLetterPage(page_of, letter_cursor(last_us), _missing(answers))

    async def redeliver(self, caller: Principal, webhook_id: str) -> Redelivery:
        await self._own(caller, webhook_id)
        answers = await self._asked.ask(
            await self._asked.all(), caller, lambda link: link.redeliver(webhook_id)
        )
        return Redelivery(sum(count or 0 for count in answers.values()), _missing(answers))

    async def _current(self) -> Sequence[Webhook]:
        found = await self._shared.current(self._mark)
        if found is not None:
            self._known, self._mark = found.webhooks, found.mark
        return self._known

    async def _own(self, caller: Principal, webhook_id: str) -> Webhook:
        for webhook in await self._current():
            if webhook.id == webhook_id and webhook.tenant == caller.tenant:
                return webhook
        raise no_webhook()


def total(parts: Sequence[Progress], missing: tuple[str, ...] = ()) -> Progress:
    """What the workers have done together. The webhook is disabled once each of them has heard of it."""
    disabled = [part.disabled_at for part in parts if part.disabled_at is not None]
    return Progress(
        cursor_us=0,
        delivered=sum(part.delivered for part in parts),
        delivered_at=max(
            (part.delivered_at for part in parts if part.delivered_at is not None), default=None
        ),
        attempts=max((part.attempts for part in parts), default=0),
        retry_at=min((part.retry_at for part in parts if part.retry_at is not None), default=None),
        error=next((part.error for part in parts if part.error), ""),
        missed=sum(part.missed for part in parts),
        disabled_at=max(disabled) if disabled and len(disabled) == len(parts) else None,
        dead_letters=sum(part.dead_letters for part in parts),
        missing_workers=missing,
    )


def _missing(answers: Mapping[str, object | None]) -> tuple[str, ...]:
    return tuple(sorted(worker for worker, answer in answers.items() if answer is None))

"""HTTP bodies for webhooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sandlot.domain.history.positions import parse_event_id
from sandlot.domain.webhooks.webhook import DeadLetter, DeadLetterPage, Progress, Redelivery, Webhook
from sandlot.wire.http_bodies import STRICT


@dataclass(frozen=True, slots=True)
class CreateWebhookBody:
    """A webhook to create.

    url: where to send events: an https address.
    events: which types of event, such as ``session.ended``. They are the kinds of the history.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    url: str
    events: list[str]


@dataclass(frozen=True, slots=True)
class WebhookBody:
    """A webhook, without its secret.

    id: names the webhook.
    url: where its events are sent.
    events: which types of event.
    state: ``active``, ``failing`` (the last attempt failed; more follow) or ``disabled`` (the receiver
        answered 410).
    created_at: seconds since 1970; so are the other times.
    created_by: who created it: the id of a key, or the subject of a token; empty for the server's own key.
    delivered: how many deliveries the receiver accepted.
    delivered_at: when it accepted the last one; null for never.
    attempts: how often the next event was tried without success.
    retry_at: when it is tried again; null if nothing waits for another attempt.
    error: why the last attempt failed; empty if it did not.
    dead_letters: how many events were given up after the last attempt.
    missed: how many events were deleted before they could be delivered, because the history was full or they
        were too old, or because there were too many dead letters.
    disabled_at: when the receiver answered 410; null if it did not.
    missing_workers: the workers of a fleet that did not answer; what they did is not counted.
    """

    id: str
    url: str
    events: list[str]
    state: str
    created_at: float
    created_by: str = ""
    delivered: int = 0
    delivered_at: float | None = None
    attempts: int = 0
    retry_at: float | None = None
    error: str = ""
    dead_letters: int = 0
    missed: int = 0
    disabled_at: float | None = None
    missing_workers: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, webhook: Webhook, progress: Progress) -> WebhookBody:
        return cls(
            id=webhook.id,
            url=webhook.url,
            events=list(webhook.events),
            state=progress.state,
            created_at=webhook.created_at,
            created_by=webhook.created_by,
            delivered=progress.delivered,
            delivered_at=progress.delivered_at,
            attempts=progress.attempts,
            retry_at=progress.retry_at,
            error=progress.error,
            dead_letters=progress.dead_letters,
            missed=progress.missed,
            disabled_at=progress.disabled_at,
            missing_workers=list(progress.missing_workers),
        )

    def to_progress(self) -> Progress:
        """What a worker says about its own deliveries."""
        return Progress(
            cursor_us=0,
            delivered=self.delivered,
            delivered_at=self.delivered_at,
            attempts=self.attempts,
            retry_at=self.retry_at,
            error=self.error,
            missed=self.missed,
            disabled_at=self.disabled_at,
            dead_letters=self.dead_letters,
        )


@dataclass(frozen=True, slots=True)
class NewWebhookBody:
    """A webhook that was just created.

    webhook: the webhook.
    secret: verifies the signatures of its deliveries, as ``whsec_…``. It is shown only here.
    """

    webhook: WebhookBody
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class WebhookListBody:
    """All webhooks of a tenant.

    webhooks: in the order of their creation.
    """

    webhooks: list[WebhookBody]

    @classmethod
    def of(cls, known: Sequence[tuple[Webhook, Progress]]) -> WebhookListBody:
        return cls([WebhookBody.of(*each) for each in known])


@dataclass(frozen=True, slots=True)
class DeadLetterBody:
    """A delivery that was given up.

    id: of the delivery: the header ``webhook-id`` of each attempt.
    type: of the event.
    event_id: names the event.
    attempts: how often it was tried.
    error: why the last attempt failed.
    failed_at: when that was, in seconds since 1970.
    due: whether it is about to be tried again.
    """

    id: str
    type: str
    event_id: str
    attempts: int
    error: str
    failed_at: float
    due: bool = False

    @classmethod
    def of(cls, letter: DeadLetter) -> DeadLetterBody:
        return cls(
            letter.id,
            letter.kind,
            letter.event_id,
            letter.attempts,
            letter.error,
            letter.failed_at,
            letter.due,
        )

    def to_domain(self) -> DeadLetter:
        """Raises ``InvalidRequest`` if the event's id has no time."""
        time_us = parse_event_id(self.event_id)[0]
        return DeadLetter(
            self.id, time_us, self.event_id, self.type, self.attempts, self.error, self.failed_at, self.due
        )


@dataclass(frozen=True, slots=True)
class DeadLetterPageBody:
    """One page of dead letters.

    dead_letters: oldest first.
    next: send it as ``after`` to get the next page; null on the last one.
    missing_workers: the workers of a fleet that did not answer; theirs are not in it.
    """

    dead_letters: list[DeadLetterBody]
    next: str | None = None
    missing_workers: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, page: DeadLetterPage) -> DeadLetterPageBody:
        letters = [DeadLetterBody.of(letter) for letter in page.dead_letters]
        return cls(letters, page.next, list(page.missing_workers))


@dataclass(frozen=True, slots=True)
class RedeliverBody:
    """Dead letters that are tried again.

    redelivering: how many there are.
    missing_workers: the workers of a fleet that did not answer; theirs are not tried.
    """

    redelivering: int
    missing_workers: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, redelivery: Redelivery) -> RedeliverBody:
        return cls(redelivery.count, list(redelivery.missing_workers))

"""Webhooks: what one is, who may have it, and what is kept about its deliveries. Pure."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol
from urllib.parse import urlsplit

from sandlot.domain.callers.principal import Principal, Scope
from sandlot.domain.errors import Conflict, InvalidRequest, NotFound
from sandlot.domain.history.events import Event, parse_kind
from sandlot.domain.network.addresses import Networks
from sandlot.domain.webhooks.addresses import refusal_of
from sandlot.domain.webhooks.signing import new_secret

MAX_WEBHOOKS_OF_TENANT: Final = 10
# Each active webhook has a task, and while it sends a connection.
MAX_WEBHOOKS: Final = 1000
# Of one webhook: of two weeks, if it always fails. Beyond it, the oldest is forgotten and counted as missed.
MAX_DEAD_LETTERS: Final = 100
MAX_URL_CHARS: Final = 2048

_ID: Final = re.compile(r"whk_[0-9a-f]{32}")
_PRINTABLE: Final = re.compile(r"[!-~]+")
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")

WebhookState = Literal["active", "failing", "disabled"]


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook as the server keeps it.

    id: names the webhook.
    tenant: whose events it sends.
    url: where to.
    events: which kinds of event; see ``EventKind``.
    scopes: what its creator could see of events. It sends no more than that.
    secret: signs its deliveries.
    created_at, created_by: when, and by whom: the id of a key, or the subject of a token; empty for the
        server's own key.
    """

    id: str
    tenant: str
    url: str
    events: tuple[str, ...]
    scopes: frozenset[Scope]
    secret: str = field(repr=False)
    created_at: float
    created_by: str = ""

    def visible(self, event: Event) -> Event:
        """The event as the creator of the webhook could see it."""
        return event.visible_to(Principal(self.tenant, self.scopes))

    def delivery_id(self, event_id: str) -> str:
        """The same for each attempt to deliver this event, whichever process makes it."""
        digest = hashlib.sha256(f"{self.id} {event_id}".encode()).hexdigest()
        return f"msg_{digest[:32]}"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a webhook has come.

    cursor_us: the time of the last event that needs no more attempts, in microseconds.
    delivered: how many deliveries the receiver accepted.
    delivered_at: when it accepted the last one; None for never.
    attempts: how often the next event was tried without success.
    retry_at: when it is tried again; None if it was not tried yet.
    error: why the last attempt failed; empty if it did not.
    missed: how many events were deleted before they could be delivered.
    disabled_at: when the receiver said that it is gone; None if it did not.
    dead_letters: how many events were given up.
    missing_workers: the workers of a fleet that did not answer; what they did is not counted.
    """

    cursor_us: int
    delivered: int = 0
    delivered_at: float | None = None
    attempts: int = 0
    retry_at: float | None = None
    error: str = ""
    missed: int = 0
    disabled_at: float | None = None
    dead_letters: int = 0
    missing_workers: tuple[str, ...] = ()

    @property
    def state(self) -> WebhookState:
        if self.disabled_at is not None:
            return "disabled"
        return "failing" if self.error else "active"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A delivery that was given up.

    id: of the delivery; each attempt had it, and another one will have it.
    time_us: when the event happened, in microseconds; orders the dead letters of a webhook.
    event_id: names the event.
    kind: of the event.
    attempts: how often it was tried.
    error: why the last attempt failed.
    failed_at: when that was.
    due: whether it is about to be tried again.
    body: what is sent.
    """

    id: str
    time_us: int
    event_id: str
    kind: str
    attempts: int
    error: str
    failed_at: float
    due: bool = False
    body: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Dead letters, oldest first and without their bodies. ``next`` is None on the last page.

    missing_workers: the workers of a fleet that did not answer; theirs are not in it.
    """

    dead_letters: Sequence[DeadLetter]
    next: str | None = None
    missing_workers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Redelivery:
    """Dead letters that are tried again.

    count: how many there are.
    missing_workers: the workers of a fleet that did not answer; theirs are not tried.
    """

    count: int
    missing_workers: tuple[str, ...] = ()


class Webhooks(Protocol):
    """The webhooks of a server. Each call is for the caller's own tenant; a foreign webhook does not exist.

    Whether the caller has the scope ``admin``, the API has checked.
    """

    async def create(self, caller: Principal, url: str, events: Sequence[str]) -> Webhook: ...

    async def list(self, caller: Principal) -> Sequence[tuple[Webhook, Progress]]: ...

    async def get(self, caller: Principal, webhook_id: str) -> tuple[Webhook, Progress]: ...

    async def delete(self, caller: Principal, webhook_id: str) -> None: ...

    async def dead_letters(
        self, caller: Principal, webhook_id: str, *, after: str | None, limit: int
    ) -> DeadLetterPage: ...

    async def redeliver(self, caller: Principal, webhook_id: str) -> Redelivery:
        """Try all dead letters again, each once."""
        ...


def new_webhook(
    creator: Principal, now: float, *, url: str, events: Collection[str], allowed: Networks = ()
) -> Webhook:
    """``allowed``: addresses that may be sent to although they are not public."""
    creator.require(Scope.SESSIONS_READ)  # as for reading the events
    if not events:
        raise InvalidRequest("A webhook needs at least one type of event, such as session.ended.")
    return Webhook(
        id="whk_" + secrets.token_hex(16),
        tenant=creator.tenant,
        url=check_url(url, allowed),
        events=tuple(sorted({parse_kind(name).value for name in events})),
        scopes=creator.scopes & {Scope.EXEC, Scope.FILES},
        secret=new_secret(),
        created_at=now,
        created_by=creator.key_id or creator.subject,
    )


def check_url(url: str, allowed: Networks = ()) -> str:
    """The URL, if it can be a receiver's. What its name resolves to is checked at each delivery."""
    if len(url) > MAX_URL_CHARS or _PRINTABLE.fullmatch(url) is None or "\\" in url:
        raise InvalidRequest(f"A webhook's URL has at most {MAX_URL_CHARS} printable ASCII characters.")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise InvalidRequest("The webhook's URL is malformed. Use https://HOST/PATH.") from None
    if parts.scheme not in ("https", "http") or _HOST.fullmatch(host) is None or port == 0:
        raise InvalidRequest("A webhook's URL must be https://HOST[:PORT]/PATH.")
    if "@" in parts.netloc or parts.fragment:
        raise InvalidRequest("A webhook's URL must not have a user name, a password or a fragment (#).")
    if (refusal := refusal_of(host, allowed, encrypted=parts.scheme == "https")) is not None:
        raise InvalidRequest(refusal)
    return url


def is_webhook_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def no_webhook() -> NotFound:
    return NotFound("There is no webhook with this id. `sandlot webhooks list` shows the ids.")


def receiver_gone() -> Conflict:
    return Conflict("This webhook is disabled: its receiver is gone. Create a new webhook.")


def too_many_of_tenant() -> Conflict:
    return Conflict(
        f"This tenant has {MAX_WEBHOOKS_OF_TENANT} webhooks, the most that one may have. Delete one, or add "
        "the types of events to an existing receiver."
    )


def too_many() -> Conflict:
    return Conflict(f"There are {MAX_WEBHOOKS} webhooks, the most that there can be. Delete some.")


def letter_cursor(time_us: int) -> str:
    """Where a page of dead letters ends: the time of its last event."""
    return f"{time_us:014x}"


def parse_letter_cursor(after: str | None) -> int:
    if after is None:
        return 0
    try:
        if len(after) == 14:
            return int(after, 16)
    except ValueError:
        pass
    raise InvalidRequest(f"{after!r:.80} is not a page cursor. Pass the 'next' value of the previous page.")

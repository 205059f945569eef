"""The contract of a fleet's webhooks: coordinators add and remove them, and every worker follows the list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sandlot.domain.webhooks.webhook import Webhook


@dataclass(frozen=True, slots=True)
class WebhookList:
    """webhooks: all of them, of all tenants. mark: names this list; pass it to the next call."""

    webhooks: Sequence[Webhook]
    mark: str


class SharedWebhooks(Protocol):
    async def add(self, webhook: Webhook) -> None:
        """Raises ``Conflict`` at ``MAX_WEBHOOKS_OF_TENANT`` and at ``MAX_WEBHOOKS``."""
        ...

    async def remove(self, webhook: Webhook) -> None:
        """Does nothing if it is removed already."""
        ...

    async def current(self, mark: str = "") -> WebhookList | None:
        """The list; None if it is still the one that ``mark`` names."""
        ...

"""The options of a worker's webhooks. ``config`` has the setting for users."""

from __future__ import annotations

from dataclasses import dataclass, field

from sandlot.domain.network.addresses import Networks
from sandlot.domain.webhooks.attempts import Schedule


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    # Addresses that may be sent to although they are not public.
    allowed: Networks = ()
    schedule: Schedule = field(default_factory=Schedule)
    # Seconds for one attempt, from the name's resolution to the status line of the answer.
    timeout_s: float = 10.0
    # How many attempts run at once, over all webhooks. One webhook never has more than one.
    at_once: int = 64
    # How many begin in a second, over all webhooks. Each takes up to 2 ms of the loop that serves
    # commands, so nine tenths of the loop are left for these, however many events there are.
    per_s: float = 50.0
    # Whether a fleet's coordinators decide which webhooks there are. Then nothing is sent before
    # ``take`` says which.
    shared: bool = False

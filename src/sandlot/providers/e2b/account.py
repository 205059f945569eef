"""Which E2B a provider uses, and what its sandboxes cost when nobody is there."""

from __future__ import annotations

from dataclasses import dataclass, field

DEFAULT_TIMEOUT_S = 900
HIDDEN = "***"


@dataclass(frozen=True, slots=True)
class E2BAccount:
    """``api_url`` and ``sandbox_url``: another server than E2B's cloud that speaks its API.

    ``timeout_s``: when E2B ends a sandbox that no worker extends. ``user``: whom the agent runs as.
    """

    api_key: str = field(repr=False)
    api_url: str | None = None
    sandbox_url: str | None = None
    timeout_s: int = DEFAULT_TIMEOUT_S
    user: str = "root"

    def without_key(self, text: str) -> str:
        return text.replace(self.api_key, HIDDEN)

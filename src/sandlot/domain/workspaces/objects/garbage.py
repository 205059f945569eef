"""Which chunks of a tenant to delete.

A save relies on chunks that are in the store already, and nobody sees so until it publishes its manifest. So
a chunk that no manifest needs is first condemned, in a list that every save reads when it begins. A save
relies on no condemned chunk: it sends that one again, under another name. A save takes at most half of the
grace. So when a chunk was condemned for the whole grace, every save that may rely on it has published, and it
is deleted if it is still in no manifest. No save ever waits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

DEFAULT_GRACE_S: Final = 24 * 3600.0
# How many chunks are condemned in one go: each save reads the list.
MAX_CONDEMNED: Final = 100_000


def longest_save_s(grace_s: float) -> float:
    return grace_s / 2


@dataclass(slots=True)
class Sorting:
    """``condemned``: since when, in seconds since the epoch, as the last collection left it.

    ``delete`` and ``next_condemned`` hold what was decided.
    """

    condemned: dict[str, float]
    now: float
    grace_s: float
    delete: list[str] = field(default_factory=list)
    next_condemned: dict[str, float] = field(default_factory=dict)

    def see(self, chunk: str, *, needed: bool, age_s: float) -> None:
        """Decide on one chunk. ``age_s``: since it was sent. A young one is on its way to a manifest."""
        if needed:
            return
        since = self.condemned.get(chunk)
        if since is not None and self.now - since >= self.grace_s:
            self.delete.append(chunk)
        elif since is not None:
            self.next_condemned[chunk] = since
        elif age_s >= self.grace_s and len(self.next_condemned) < MAX_CONDEMNED:
            self.next_condemned[chunk] = self.now

"""Masks secrets in text that arrives in pieces, wherever a secret is split. Pure.

It finds what ``domain.history.masking`` finds, and nothing else: exact values, and API keys.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection
from itertools import chain
from typing import Final

from sandlot.domain.callers.keys import BEGINNING_OF_KEY, KEY_CHARS, KEY_IN_TEXT, KEY_PREFIX
from sandlot.domain.history.masking import LOOKED_FOR_CHARS, MASK, places

# Characters looked at in one step. It bounds how long one step takes, because callers choose the secrets.
STEP_CHARS: Final = 4096


class MaskedStream:
    """Text with each secret replaced by ``***``.

    The end of a piece is held back only while it may be the beginning of a secret, so that a prompt shows
    when it was written.
    """

    def __init__(self, secrets: Collection[str]) -> None:
        # A terminal writes a line's end as two characters.
        self._secrets = list(dict.fromkeys(chain(secrets, (s.replace("\n", "\r\n") for s in secrets))))
        self._beginnings: defaultdict[str, list[str]] = defaultdict(list)  # by their first characters
        for secret in self._secrets:
            self._beginnings[secret[0]].append(secret[:LOOKED_FOR_CHARS])
        self._first = re.compile("|".join(map(re.escape, {KEY_PREFIX[0], *self._beginnings})))
        self._longest = max([KEY_CHARS, *(min(len(s), LOOKED_FOR_CHARS) for s in self._secrets)])
        self._held = ""
        self._covered = 0  # how many of the next characters belong to a secret that is masked already

    def feed(self, text: str) -> str:
        """Add a piece. Returns what can be shown by now."""
        steps = (text[at : at + STEP_CHARS] for at in range(0, len(text), STEP_CHARS))
        return "".join(self._add(step) for step in steps)

    def end(self) -> str:
        """The rest: nothing follows that could complete a secret."""
        return self._show(self._held, len(self._held))

    def _add(self, piece: str) -> str:
        seen = self._held + piece
        return self._show(seen, self._possible_secret_at(seen))

    def _possible_secret_at(self, seen: str) -> int:
        """Where a secret begins that later text may complete; the length of the text if nowhere."""
        for match in self._first.finditer(seen, max(0, len(seen) - self._longest + 1)):
            rest, beginnings = seen[match.start() :], self._beginnings.get(match[0], ())
            if any(len(rest) < len(known) and known.startswith(rest) for known in beginnings):
                return match.start()
            if BEGINNING_OF_KEY.fullmatch(rest):
                return match.start()
        return len(seen)

    def _show(self, seen: str, end: int) -> str:
        """The masked text up to ``end``. What follows is held back."""
        spans = [span for secret in self._secrets for span in places(seen, secret)]
        if KEY_PREFIX in seen:
            spans += [match.span() for match in KEY_IN_TEXT.finditer(seen)]
        shown, at = [], self._covered
        for start, stop in sorted(spans):
            if start >= end:
                break
            if start >= at:
                shown += [seen[at:start], MASK]
            at = max(at, stop)
        if at < end:
            shown.append(seen[at:end])
            at = end
        self._held, self._covered = seen[end:], at - end
        return "".join(shown)

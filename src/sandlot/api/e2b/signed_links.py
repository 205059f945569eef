"""Finds the sandbox that a signed link to a file belongs to.

E2B's SDK puts no sandbox into a link, only a signature that it makes with the sandbox's token. So the tokens
of all sandboxes are tried that somebody could have signed with. This process keeps those that it has issued.
Others follow from the sandboxes and keys that there are, and are looked up at most once in a while, because
anybody can send a wrong link.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Final

from sandlot.domain.callers.principal import Principal, Scope
from sandlot.domain.e2b.tokens import SandboxTokens, SignedLink
from sandlot.domain.service import SandboxHost

LEARN_AT_MOST_EVERY_S: Final = 2.0
# Tokens that are tried for one link. Each takes about 2 µs.
MAX_TOKENS: Final = 20_000
_PAGE: Final = 1000
_MAY_LIST: Final = frozenset({Scope.SESSIONS_READ})

# The tenants that have keys, and the ids of each one's keys.
KeysOf = Callable[[], Collection[tuple[str, str]]]


class LinkedSessions:
    """``keys``: of each active key the tenant and the id, which is empty for the server's own key."""

    def __init__(self, host: SandboxHost, tokens: SandboxTokens, keys: KeysOf) -> None:
        self._host = host
        self._tokens = tokens
        self._keys = keys
        self._known: dict[str, str] = {}  # token → session id
        self._learned_at = 0.0
        self._learning = asyncio.Lock()

    def now(self) -> float:
        return time.time()

    def add(self, session_id: str, token: str) -> None:
        """Note a token that was issued. The oldest one is forgotten when there are too many."""
        self._known.pop(token, None)
        self._known[token] = session_id
        if len(self._known) > MAX_TOKENS:
            del self._known[next(iter(self._known))]

    def find(self, link: SignedLink) -> tuple[str, str] | None:
        """The session and the token that the link was signed with."""
        for token, session_id in self._known.items():
            if link.fits(token):
                return session_id, token
        return None

    async def learn(self) -> bool:
        """Look up sandboxes that others issued tokens for. Returns whether it is worth trying again."""
        async with self._learning:
            if time.monotonic() - self._learned_at < LEARN_AT_MOST_EVERY_S:
                return False
            before = len(self._known)
            keys_of: dict[str, list[str]] = {}
            for tenant, key_id in self._keys():
                keys_of.setdefault(tenant, []).append(key_id)
            for tenant, key_ids in keys_of.items():
                await self._learn_of(tenant, key_ids)
            self._learned_at = time.monotonic()
            return len(self._known) > before

    async def _learn_of(self, tenant: str, key_ids: list[str]) -> None:
        service = self._host.acting_for(Principal(tenant, _MAY_LIST, subject="signed links"))
        after: str | None = None
        while len(self._known) < MAX_TOKENS:
            page = await service.list_sessions(after=after, limit=_PAGE)
            for session in page.sessions:
                for key_id in key_ids:
                    token = self._tokens.issue(session.id, key_id)
                    if token not in self._known:
                        self.add(session.id, token)
            after = page.next
            if after is None:
                return

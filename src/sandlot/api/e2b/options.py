"""The options of E2B's API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from sandlot.domain.callers.principal import OWNER, Principal
from sandlot.domain.e2b.tokens import SandboxTokens, TokenKind
from sandlot.domain.templates.build import TemplateBuilds

# What E2B's SDKs ask for before they use a feature. All features up to this version are there; those of the
# next one are not: metadata of files needs extended attributes.
ENVD_VERSION: Final = "0.5.7"
# How long a sandbox lives if nobody says, as E2B's SDKs document it.
DEFAULT_TIMEOUT_S: Final = 300


@dataclass(frozen=True, slots=True)
class E2bOptions:
    """``secret``: at least 32 random bytes, from which the tokens of sandboxes are derived.

    ``domain``: the hosts of previews, after the port and the id; None if previews have no hosts.
    ``builds``: None if clients build no templates here.
    """

    secret: bytes = field(repr=False)
    domain: str | None = None
    builds: TemplateBuilds | None = None


@dataclass(frozen=True, slots=True)
class TokenHolders:
    """Issues tokens of sandboxes, and says whom one belongs to.

    ``holder_of``: whom a key belongs to, by its id; None if it has ended.
    """

    tokens: SandboxTokens
    holder_of: Callable[[str], Principal | None]

    def of(self, session_id: str, token: str, kind: TokenKind = TokenKind.SANDBOX) -> Principal | None:
        key_id = self.tokens.key_of(session_id, token, kind)
        if key_id is None:
            return None
        return self.holder_of(key_id) if key_id else OWNER

"""Who makes a call: a tenant, the scopes of its key, and whom the key was issued to.

The API's admission makes a principal from a credential, and from nothing else. Every call of the contract
is made as somebody (``SandboxHost.acting_for``), so no implementation can forget to ask whose session it is.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sandlot.domain.errors import Forbidden, InvalidRequest
from sandlot.domain.text.suggestions import did_you_mean

DEFAULT_TENANT: Final = "default"
_TENANT: Final = re.compile(r"[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?")


class Scope(StrEnum):
    """What a key may do.

    sessions:read: see sessions and what the server offers.
    sessions:write: create, change, recreate and delete sessions.
    exec: run commands, read their output, use shells.
    files: read and write files in sandboxes.
    network: decide where a session's sandbox may connect to, connect to its ports and expose them.
    admin: manage the keys and webhooks of its own tenant.
    metrics:read: read the server's metrics and its full health.
    fleet:operate: drain workers, see all tenants' sessions by worker, and manage the keys of all tenants.
    """

    SESSIONS_READ = "sessions:read"
    SESSIONS_WRITE = "sessions:write"
    EXEC = "exec"
    FILES = "files"
    NETWORK = "network"
    ADMIN = "admin"
    METRICS_READ = "metrics:read"
    FLEET_OPERATE = "fleet:operate"


ALL_SCOPES: Final = frozenset(Scope)
# What a new key may do unless its creator says otherwise: everything with sandboxes, and nothing else.
USER_SCOPES: Final = frozenset(
    {Scope.SESSIONS_READ, Scope.SESSIONS_WRITE, Scope.EXEC, Scope.FILES, Scope.NETWORK}
)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who makes a call.

    tenant: who owns the sessions that the call can see. It comes from the credential only.
    scopes: what the caller may do.
    key_id: the id of the caller's key; empty for the server's own key and for a program in local mode.
    subject: whom the credential was issued to, in the issuer's words.
    expires_at: when the credential ends by itself; None for never.
    forwarded: whether a coordinator passes the call on, which has counted it already.
    """

    tenant: str
    scopes: frozenset[Scope] = ALL_SCOPES
    key_id: str = ""
    subject: str = ""
    expires_at: float | None = None
    forwarded: bool = False

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes

    def require(self, scope: Scope) -> None:
        """Raise ``Forbidden`` if the caller lacks the scope."""
        if scope not in self.scopes:
            raise Forbidden(
                f"This key lacks the scope {scope.value}. Use a key that has it.",
                details={"scope": scope.value},
            )


# The holder of the server's one key, everyone on a server without keys, and a program in local mode.
OWNER: Final = Principal(DEFAULT_TENANT)
# A fleet member that calls another one on its own account, such as a coordinator that drains a worker.
MEMBER: Final = Principal("", frozenset({Scope.FLEET_OPERATE, Scope.METRICS_READ}))
# Who calls a path that needs no key. It owns nothing and may do nothing.
NOBODY: Final = Principal("", frozenset())


def check_tenant(tenant: str) -> str:
    if _TENANT.fullmatch(tenant) is None:
        raise InvalidRequest(
            f"Invalid tenant {tenant!r:.80}. Use 1-64 lowercase letters, digits and . _ -, with a letter or "
            "digit at both ends."
        )
    return tenant


def parse_scopes(names: Collection[str]) -> frozenset[Scope]:
    known = {scope.value: scope for scope in Scope}
    for name in names:
        if name not in known:
            raise InvalidRequest(
                f"Unknown scope {name!r:.80}.{did_you_mean(name[:80], known)} Scopes are: {', '.join(known)}."
            )
    return frozenset(known[name] for name in names)

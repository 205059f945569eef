"""Decides who makes a request to a sandbox: by the sandbox's token, or by a signed link to a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

from starlette.types import Scope

from sandlot.api.e2b.options import TokenHolders
from sandlot.api.e2b.signed_links import LinkedSessions
from sandlot.api.edge.admission import Admission, Refusal
from sandlot.domain.callers.principal import Principal
from sandlot.domain.e2b.names import session_id_of
from sandlot.domain.e2b.tokens import SignedLink, TokenKind
from sandlot.domain.errors import InvalidRequest, NotFound, Unauthorized

SANDBOX_HEADER: Final = b"e2b-sandbox-id"
PORT_HEADER: Final = b"e2b-sandbox-port"
TOKEN_HEADER: Final = b"x-access-token"
PORT_TOKEN_HEADER: Final = b"e2b-traffic-access-token"
ENVD_PORT: Final = 49983
CODE_PORT: Final = 49999
FILES_PATH: Final = "/files"
# Where the session is noted that a request was admitted to.
SESSION: Final = "e2b_session"
# Marks a refusal of a link whose sandbox may be one that this process does not know yet.
_UNKNOWN_LINK: Final = b"link"
_MAX_QUERY_BYTES: Final = 32 * 1024


class SandboxAdmission:
    def __init__(self, admission: Admission, holders: TokenHolders, links: LinkedSessions) -> None:
        self._admission = admission
        self._holders = holders
        self._links = links

    def admit_request(self, scope: Scope) -> Principal | Refusal:
        refusal = self._admission.refusal_of_site(scope["headers"])
        if refusal is not None:
            return refusal
        named = header(scope, SANDBOX_HEADER)
        try:
            session_id = None if named is None else session_id_of(named)
        except NotFound:
            return Refusal(401, _wrong_token())
        token = header(scope, TOKEN_HEADER)
        link = None if token is not None else link_of(scope)
        if link is not None:
            return self._admit_link(scope, link, session_id)
        if session_id is None:
            return Refusal(400, InvalidRequest("Name the sandbox in the header E2b-Sandbox-Id."))
        holder = None if token is None else self._holders.of(session_id, token)
        if token is None and header(scope, PORT_HEADER) == str(CODE_PORT):
            # The SDKs send only this one with some calls to the code interpreter.
            port_token = header(scope, PORT_TOKEN_HEADER) or ""
            holder = self._holders.of(session_id, port_token, TokenKind.PORT)
        if holder is None:
            return Refusal(401, _wrong_token())
        scope["state"][SESSION] = session_id
        return holder

    def _admit_link(self, scope: Scope, link: SignedLink, session_id: str | None) -> Principal | Refusal:
        if link.has_expired(self._links.now()):
            return Refusal(401, Unauthorized("This link has expired."))
        found = self._links.find(link)
        if found is None or session_id not in (None, found[0]):
            return Refusal(401, Unauthorized("This link does not open a sandbox here."), _UNKNOWN_LINK)
        holder = self._holders.of(*found)
        if holder is None:
            return Refusal(401, _wrong_token())
        scope["state"][SESSION] = found[0]
        return holder

    async def may_admit_later(self, refusal: Refusal) -> bool:
        return refusal.key == _UNKNOWN_LINK and await self._links.learn()


def _wrong_token() -> Unauthorized:
    return Unauthorized(
        "The access token does not open this sandbox. Create the sandbox or connect to it with your API key."
    )


def header(scope: Scope, name: bytes) -> str | None:
    """The value of a header that comes once; None if it is absent or comes more often."""
    found = [value for each, value in scope["headers"] if each == name]
    return found[0].decode("latin-1") if len(found) == 1 else None


def query_of(scope: Scope) -> Mapping[str, str]:
    """The query's fields. One that comes twice is refused, because readers would disagree about it."""
    query: bytes = scope["query_string"]
    if len(query) > _MAX_QUERY_BYTES:
        raise InvalidRequest(f"The query has more than {_MAX_QUERY_BYTES} bytes.")
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=100)
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise InvalidRequest("The query names a field twice.")
    return fields


def link_of(scope: Scope) -> SignedLink | None:
    if scope["path"] != FILES_PATH or b"signature=" not in scope["query_string"]:
        return None
    try:
        fields = query_of(scope)
    except (InvalidRequest, ValueError):
        return None
    if "signature" not in fields:
        return None
    return SignedLink(
        fields.get("path", ""),
        "read" if scope["method"] == "GET" else "write",
        fields.get("username", ""),
        fields["signature"],
        fields.get("signature_expiration"),
    )

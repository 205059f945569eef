"""Which field of a request carries a secret. Pure.

Authorization: Bearer {secret}   a header
x-api-key: {secret}              a header
?key={secret}                    a field of the query
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote_plus

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.network.hosts import shown

PLACE: Final = "{secret}"
MAX_CHARS: Final = 300
_HEADER: Final = re.compile(r"([A-Za-z0-9-]{1,64}): ?([!-~](?:[ -~]*[!-~])?)")
_QUERY: Final = re.compile(r"\?([A-Za-z0-9._-]{1,64})=([!-~]+)")
# These say where a request goes and where it ends. Others read them before the host does.
_NEVER: Final = frozenset(
    {
        *("host", "connection", "content-length", "transfer-encoding", "te", "trailer", "upgrade", "expect"),
        *("keep-alive", "proxy-authorization", "proxy-connection", "accept-encoding", "range"),
    }
)

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Placement:
    """``header`` or ``query`` is the name of the field; ``form`` is what stands in it."""

    form: str
    header: str = ""
    query: str = ""

    def __str__(self) -> str:
        """What ``parse_placement`` reads."""
        return f"{self.header}: {self.form}" if self.header else f"?{self.query}={self.form}"

    def placed(self, value: str, target: bytes, headers: Headers) -> tuple[bytes, Headers]:
        """A request's target and headers with the value. What the program wrote in the same field is gone."""
        text = self.form.replace(PLACE, value)
        if self.header:
            name = self.header.lower().encode()
            kept = [pair for pair in headers if pair[0].lower() != name]
            return target, [*kept, (name, text.encode())]
        path, _, query = target.partition(b"?")
        fields = [each for each in query.split(b"&") if each and _name_of(each) != self.query]
        own = f"{self.query}={quote(text, safe='')}".encode()
        return b"?".join((path, b"&".join([*fields, own]))), headers

    def spellings(self, value: str) -> tuple[str, ...]:
        """How the value may stand in an answer that repeats the request, longest first."""
        found = {value, quote(value, safe="")} if self.query else {value}
        return tuple(sorted(found, key=len, reverse=True))


def parse_placement(text: str) -> Placement:
    if len(text) <= MAX_CHARS and text.count(PLACE) == 1:
        if (query := _QUERY.fullmatch(text)) is not None:
            return Placement(query[2], query=query[1])
        if (header := _HEADER.fullmatch(text)) is not None:
            if header[1].lower() in _NEVER:
                raise InvalidRequest(f"The header {header[1]} cannot carry a secret.")
            return Placement(header[2], header=header[1])
    raise InvalidRequest(
        f"{shown(text)} does not say where a secret goes. Write a header, such as 'Authorization: Bearer "
        f"{PLACE}', or a field of the query, such as '?key={PLACE}', with {PLACE} in it once."
    )


def _name_of(field: bytes) -> str:
    """As a server reads it: ``k%65y`` is ``key``."""
    return unquote_plus(field.partition(b"=")[0].decode("latin-1"))

"""The pages of registries, with links that lead through the gateway. Pure.

Links are replaced in the text of a page, which may be large: as a document it would take ten times its size.
A link that is not understood stays as it is. It leads past the cache, where the session's policy decides.
"""

from __future__ import annotations

import html
import re
from typing import Final

from sandlot.domain.packages.registries import Registry, Wanted

_HREF: Final = re.compile(
    r"""(<a\s(?:[^<>"']|"[^"]*"|'[^']*')*?\bhref\s*=\s*)("[^"]*"|'[^']*')""", re.IGNORECASE
)
_BASE: Final = re.compile(r"<base\s", re.IGNORECASE)
# In JSON, a quote inside a text has a backslash before it, so this is a field and not a part of a text.
_FIELD: Final = r"""(?<!\\)("%s"\s*:\s*")((?:[^"\\]|\\/)*)(?=")"""


def rewritten(registry: Registry, page: Wanted, content_type: str, body: bytes) -> bytes:
    text = body.decode("utf-8", "surrogateescape")
    text = _json(registry, page, text) if "json" in content_type else _html(registry, page, text)
    return text.encode("utf-8", "surrogateescape")


def _json(registry: Registry, page: Wanted, text: str) -> str:
    def replaced(found: re.Match[str]) -> str:
        link = registry.link(page, found[2].replace("\\/", "/"))
        return found[0] if link is None else found[1] + link

    return re.sub(_FIELD % registry.link_field, replaced, text)


def _html(registry: Registry, page: Wanted, text: str) -> str:
    if _BASE.search(text) is not None:
        return text  # its links lead from somewhere else

    def replaced(found: re.Match[str]) -> str:
        quote = found[2][0]
        link = registry.link(page, html.unescape(found[2][1:-1]))
        return found[0] if link is None else f"{found[1]}{quote}{html.escape(link)}{quote}"

    return _HREF.sub(replaced, text)

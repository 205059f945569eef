"""The pages of registries, with links that lead through the gateway. Pure.

A link that is not understood stays as it is. It leads past the cache, where the session's policy decides.
"""

from __future__ import annotations

import html
import json
import re
from typing import Any, Final

from sandlot.domain.packages.registries import Npm, Registry, Wanted

_HREF: Final = re.compile(
    r"""(<a\s(?:[^>"']|"[^"]*"|'[^']*')*?\bhref\s*=\s*)("[^"]*"|'[^']*')""", re.IGNORECASE
)
_BASE: Final = re.compile(r"<base\s", re.IGNORECASE)


class BrokenPage(Exception):
    """The registry sent something else than a page."""


def rewritten(registry: Registry, page: Wanted, content_type: str, body: bytes) -> bytes:
    """Raises ``BrokenPage``."""
    if "json" not in content_type:
        return _html(registry, page, body)
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise BrokenPage("It is not valid JSON.") from None
    if isinstance(document, dict):
        for entry, field in _linking(registry, document):
            if isinstance(url := entry.get(field), str) and (link := registry.link(page, url)) is not None:
                entry[field] = link
    return json.dumps(document, separators=(",", ":")).encode()


def _linking(registry: Registry, document: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """The parts of a page that have a link, and in which field."""
    if isinstance(registry, Npm):
        versions = document.get("versions")
        listed = list(versions.values()) if isinstance(versions, dict) else [document]
        found = [each.get("dist") for each in listed if isinstance(each, dict)]
        return [(each, "tarball") for each in found if isinstance(each, dict)]
    files = document.get("files")
    return [(each, "url") for each in files if isinstance(each, dict)] if isinstance(files, list) else []


def _html(registry: Registry, page: Wanted, body: bytes) -> bytes:
    text = body.decode("utf-8", "surrogateescape")
    if _BASE.search(text) is not None:
        return body  # its links lead from somewhere else

    def replaced(found: re.Match[str]) -> str:
        quote = found[2][0]
        link = registry.link(page, html.unescape(found[2][1:-1]))
        return found[0] if link is None else f"{found[1]}{quote}{html.escape(link)}{quote}"

    return _HREF.sub(replaced, text).encode("utf-8", "surrogateescape")

"""What a visitor reads if there is nothing to see: small pages without scripts."""

from __future__ import annotations

import html
from http import HTTPStatus
from typing import Final

from starlette.responses import Response

from sandlot.domain.errors import (
    Busy,
    InvalidRequest,
    LinkInterrupted,
    NotFound,
    SandboxLost,
    SandboxUnresponsive,
    SandlotError,
    Unavailable,
)
from sandlot.domain.network.ports import NOTHING_LISTENS

_PAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }}
body {{ max-width: 40rem; margin: 15vh auto 0; padding: 0 1.5rem; }}
h1 {{ font-size: 1.3rem; }}
code {{ font: .9em ui-monospace, monospace; }}
footer {{ margin-top: 3rem; opacity: .6; font-size: .85rem; }}
</style>
<h1>{title}</h1>
<p>{text}</p>
{advice}
<footer>Sandlot preview &middot; {status}</footer>
</html>
"""
# A page must not become part of another site, of a history, or of a cache.
_HEADERS: Final = {
    "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Refused(Exception):
    """The visitor gets a page instead of what the program would answer."""

    def __init__(self, status: int, title: str, text: str, advice: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.title = title
        self.text = text
        self.advice = advice

    def page(self, retry_after_s: float | None = None) -> Response:
        advice = f"<p>{self.advice}</p>" if self.advice else ""
        content = _PAGE.format(
            title=html.escape(self.title),
            text=html.escape(self.text),
            advice=advice,
            status=f"{self.status} {HTTPStatus(self.status).phrase}",
        )
        headers = dict(_HEADERS)
        if self.status == HTTPStatus.SERVICE_UNAVAILABLE:
            headers["Retry-After"] = "2"
        return Response(content, self.status, headers, media_type="text/html")


def nothing_here() -> Refused:
    """One answer for what is private, what has ended and what never was, so that none can be told apart."""
    return Refused(
        404,
        "No preview here",
        "This preview is private, has ended, or never existed.",
        "If you were given a link, open the whole link again. If it is your session, make a new link with "
        "<code>session.expose(PORT)</code> or <code>sandlot expose SESSION PORT</code>.",
    )


def bad_link(error: SandlotError) -> Refused:
    return Refused(
        403,
        "This link does not work",
        error.message,
        "If you were given this link, ask for a new one. If it is your session, make a new link with "
        "<code>session.expose(PORT)</code> or <code>sandlot expose SESSION PORT</code>.",
    )


def refusal_of(error: SandlotError, port: int) -> Refused:
    """What a visitor reads if the connection to the program failed."""
    if error.details.get("reason") == NOTHING_LISTENS:
        return Refused(
            502,
            f"Nothing listens on port {port}",
            f"The sandbox runs, but no program in it accepts connections on port {port}.",
            f"Start one, for example <code>python3 -m http.server {port}</code>, and reload this page. It "
            "must listen on 127.0.0.1, ::1 or 0.0.0.0.",
        )
    if isinstance(error, NotFound | InvalidRequest):  # such as an ended session, or a reserved port
        return nothing_here()
    if isinstance(error, SandboxLost):
        return Refused(
            502, "The sandbox is gone", "It was lost, and what ran in it too.", "Its owner can recreate it."
        )
    if isinstance(error, Busy | Unavailable | LinkInterrupted | SandboxUnresponsive):
        return Refused(503, "Not available now", "The sandbox cannot be reached right now. Reload this page.")
    return Refused(502, "The preview failed", "The server could not reach the program in the sandbox.")


def broken_answer(port: int) -> Refused:
    return Refused(
        502,
        "The program broke off its answer",
        f"What listens on port {port} closed the connection, or does not speak HTTP.",
    )

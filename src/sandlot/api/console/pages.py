"""``ConsolePages``: serves the console at ``/console``, without a key: its files hold no secret.

What the pages then do, they do through the public API with the key that a person types in.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from sandlot.api.console.files import ASSETS, DIST, INDEX, File, read_files
from sandlot.api.edge.admission import Admission, Refusal
from sandlot.api.edge.error_responses import http_error, problem_response
from sandlot.api.edge.middleware import EdgeMiddleware
from sandlot.domain.callers.principal import NOBODY, Principal

PATH: Final = "/console"
# Nothing from elsewhere, nothing inline, in no frame. Pictures from sandboxes are blobs, in <img> alone.
# Trusted types: a script cannot turn a text into HTML, whoever wrote it.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_LASTING: Final = "public, max-age=31536000, immutable"
_ASK_AGAIN: Final = "no-cache"
_NOT_BUILT: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>The console is not built</title>
<h1>The console is not built</h1>
<p>This server was installed without its web console. The API works as usual.</p>
<p>In a source checkout, run <code>make console</code> and restart the server. Otherwise install
Sandlot again, without <code>SANDLOT_SKIP_CONSOLE</code>.</p>
</html>
"""


class ConsolePages:
    """``edge``: how ``EdgeMiddleware`` is set up for the API's own routes."""

    # What metrics name it by.
    path: Final = f"{PATH}/{{path}}"

    def __init__(self, edge: Mapping[str, Any], folder: Path = DIST) -> None:
        self._files = read_files(folder)
        self._edge = EdgeMiddleware(
            self._serve, **{**edge, "admission": _PageAdmission(edge["admission"]), "gate": None}
        )

    def serves(self, scope: Scope) -> bool:
        path: str = scope["path"]
        if scope["type"] != "http":
            return False
        return path == PATH or path.startswith(PATH + "/") or (path == "/" and _wants_page(scope))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._edge(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = self
        try:
            answer = self._answer(scope)
        except HTTPException as error:
            known = http_error(error.status_code, error.detail)
            answer = problem_response(known, scope["state"]["request_id"], status=error.status_code)
        await answer(scope, receive, send)

    def _answer(self, scope: Scope) -> Response:
        if scope["method"] not in ("GET", "HEAD"):
            raise HTTPException(405)
        if not self._files:
            headers = {**_HEADERS, "Cache-Control": "no-store"}
            return Response(_NOT_BUILT, 404, headers, media_type="text/html")
        if scope["path"] == "/":
            return RedirectResponse(PATH + "/", headers=_HEADERS)
        name = scope["path"].removeprefix(PATH).removeprefix("/")
        file = self._files.get(name)
        if file is None:
            if name.startswith(ASSETS):
                raise HTTPException(404)
            file = self._files[INDEX]  # the page shows what its address names
        return _response(file, dict(scope["headers"]))


def _response(file: File, asked: Mapping[bytes, bytes]) -> Response:
    headers = {
        **_HEADERS,
        "Cache-Control": _LASTING if file.lasting else _ASK_AGAIN,
        "ETag": file.etag,
        "Vary": "Accept-Encoding",
        "Content-Type": file.media_type,
    }
    if file.etag.encode() in asked.get(b"if-none-match", b""):
        return Response(status_code=304, headers=headers)
    if file.gzipped is not None and b"gzip" in asked.get(b"accept-encoding", b""):
        return Response(file.gzipped, headers=headers | {"Content-Encoding": "gzip"})
    return Response(file.content, headers=headers)


class _PageAdmission:
    """Checks the host, as for the API, and no key. Another site may link to the console, and no more."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def admit_request(self, scope: Scope) -> Principal | Refusal:
        headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        if _opens_page(scope["method"], dict(headers)):
            headers = [header for header in headers if header[0] != b"sec-fetch-site"]
        return self._admission.refusal_of_site(headers) or NOBODY

    async def may_admit_later(self, _refusal: Refusal) -> bool:
        return False


def _wants_page(scope: Scope) -> bool:
    """Whether somebody typed the server's address into a browser. Programs get the API's answer."""
    return scope["method"] in ("GET", "HEAD") and b"text/html" in dict(scope["headers"]).get(b"accept", b"")


def _opens_page(method: str, headers: Mapping[bytes, bytes]) -> bool:
    return (
        method == "GET"
        and b"origin" not in headers
        and headers.get(b"sec-fetch-mode") == b"navigate"
        and headers.get(b"sec-fetch-dest") == b"document"
    )

"""Another ASGI application, mounted at one path behind the same edge."""

from __future__ import annotations

from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from sandlot.api.edge.error_responses import check_is_post


class MountedApp(BaseRoute):
    """Serves POST at exactly one path, so that no client-made path becomes a metric label."""

    def __init__(self, path: str, app: ASGIApp) -> None:
        self.path = path
        self._app = app

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] == "http" and scope["path"] == self.path:
            return Match.FULL, {"route": self}
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        check_is_post(scope)
        await self._app(scope, receive, send)

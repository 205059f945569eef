"""Another application at one path of ours, behind the same edge."""

from __future__ import annotations

from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from sandlot.api.problems import check_is_post


class MountedApp(BaseRoute):
    """Answers POST, and at this very path: nothing that a client makes up becomes the name of a figure."""

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

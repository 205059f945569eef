"""The API's description for docs/reference/openapi.json, which ``make docs`` writes.

It describes a coordinator, which serves every
route that there is. The description at a server's own ``/openapi.json`` has only what that server serves.
"""

from __future__ import annotations

import inspect
import json
from typing import Any

from fastapi.routing import APIWebSocketRoute

from sandlot.api.app import routed_app
from sandlot.api.fleet import coordinator


def description() -> str:
    """The OpenAPI description as JSON. The same routes always give the same text."""
    return json.dumps(schema(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def schema() -> dict[str, Any]:
    """The description with routes and fields in the order of the code."""
    return routed_app([coordinator.router]).openapi()


def websockets() -> dict[str, str]:
    """What OpenAPI cannot describe: the path of each WebSocket, and its messages in words."""
    routes = (route for route in routed_app().routes if isinstance(route, APIWebSocketRoute))
    return {route.path: inspect.getdoc(route.endpoint) or "" for route in routes}

"""Prints the API's description: ``python -m sandlot.api.openapi > docs/reference/openapi.json``.

``make docs`` writes it with all other generated pages.
"""

from __future__ import annotations

import inspect
import json
import sys
from typing import Any

from fastapi.routing import APIWebSocketRoute

from sandlot.api.app import routed_app


def description() -> str:
    """The same text for the same routes, always."""
    return json.dumps(schema(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def schema() -> dict[str, Any]:
    """The description with routes and fields in the order of the code."""
    return routed_app().openapi()


def websockets() -> dict[str, str]:
    """What OpenAPI cannot describe: the path of each WebSocket, and its messages in words."""
    routes = (route for route in routed_app().routes if isinstance(route, APIWebSocketRoute))
    return {route.path: inspect.getdoc(route.endpoint) or "" for route in routes}


if __name__ == "__main__":
    sys.stdout.write(description())

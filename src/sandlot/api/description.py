"""The API's description (OpenAPI): what FastAPI derives from the routes, and what it cannot know."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from sandlot.api.admission import OPEN_PATHS
from sandlot.wire.error_codes import Problem

_KEYS: dict[str, Any] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


def describe(app: FastAPI) -> None:
    """From now on ``app.openapi()`` is whole: the problem's shape, and which routes need the key."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _described(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _described(app: FastAPI) -> dict[str, Any]:
    schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    components = schema.setdefault("components", {})
    components["schemas"]["Problem"] = TypeAdapter(Problem).json_schema(mode="serialization")
    components["securitySchemes"] = _KEYS
    for path, operations in schema["paths"].items():
        if path not in OPEN_PATHS:
            for operation in operations.values():
                operation["security"] = [{name: []} for name in _KEYS]
    return schema

"""The API's OpenAPI description: what FastAPI derives from the routes, plus what it cannot know."""

from __future__ import annotations

import inspect
import re
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from sandlot.api.edge.admission import OPEN_PATHS
from sandlot.wire.error_codes import Problem

_SECURITY_SCHEMES: dict[str, Any] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


_TAGS: dict[str, str] = {
    "sessions": "A session is one sandbox that keeps its state. It ends when deleted or when its time is up.",
    "execs": """
        An exec is one run of a command, named by its id: asking again with the same id never runs the command
        twice. A shell keeps its folder, variables and functions from one command to the next.

        With `Accept: text/event-stream` the answer is server-sent events with JSON data. The events are
        `started` (`exec_id`, `pid`, `existing`), `output` (`channel`, `offset`, `text`), `exited` (`verdict`,
        `exited`) and `error` (a problem). Instead of `egress_denied`, `verdict` says `nonzero` here: look at
        `denied` of `exited`. If the output's bytes are not valid UTF-8, `output` also has
        `base64`. To continue a broken stream, send the id of its last event as `Last-Event-ID`.
    """,
    "threads": """
        A thread is a conversation. It has at most one session, which is created when it is first used.
        Percent-encode the thread's id in the path; it has 1 to 200 printable ASCII characters.
    """,
    "code": """
        Contexts keep the variables of code from one run to the next. The image needs kernels; without them
        these routes answer 501. A run of code, a cell, is an exec: its id works with all routes for execs.

        `POST …/cells` answers with one JSON object in each line; its `type` says what it is. `started` is the
        first (`exec_id`, `existing`). `stdout` and `stderr` have `text`. `data` has the forms of a value or a
        display by media type in `data`, with pictures in base64. `main` says whether it is the code's value;
        `update` says whether it replaces displays of the same `display_id`. `error` has `name`, `value` and
        `traceback`, and `count` has `execution_count`. `cleared` means that the displays so far are gone.
        `ping` means nothing. The last is `end` (`exit_code`, `verdict`, `duration_ms`, `truncated`), or
        `problem` if the events broke off.
    """,
    "files": "The files of a session. Sandlot reads and writes them as the sandbox's user.",
    "workspaces": """
        A workspace is what a session has in `/workspace`. It outlives the session's sandboxes. A snapshot is
        a workspace at one moment. It never changes, and outlives its session until it is deleted or too old.
    """,
    "artifacts": """
        An artifact is one file that stays after its session has ended. It never changes, and stays until it
        is deleted, too old, or one of too many.
    """,
    "volumes": """
        A volume is a tenant's named files. Sessions see it at `/volumes/<name>`: one of them at a time writes
        to it, and any number read a copy. It stays until it is deleted.
    """,
    "network": """
        What a session's sandbox may connect to. A sandbox has no network of its own: the server makes its
        connections, by the session's policy.
    """,
    "ports": """
        TCP ports of a sandbox's loopback. An exposed port has previews: whoever has a link sees what listens
        there, until the link expires, the port is unexposed or the session ends. Needs the scope `network`.
    """,
    "history": """
        What happened: sessions, commands, files written through the API, refused requests. A command is shown
        only to callers with the scope `exec`, a path only to those with `files`. Also the recordings of
        sessions that were created with `record`.

        With `Accept: text/event-stream` the answer is the events so far, and then each one as it happens. The
        events are `event` (an event), `missing` (`workers`: those that do not answer) and `error` (a
        problem). To continue a broken stream, send the id of its last event as `Last-Event-ID`.
    """,
    "catalogue": "What the server offers.",
    "keys": """
        API keys of users. A key belongs to a tenant, and its scopes say what its holder may do. These routes
        need the scope `admin`, or `fleet:operate` for the keys of other tenants.
    """,
    "tenants": """
        What tenants may use, and what they use now. Each caller sees its own tenant. Setting limits needs the
        scope `fleet:operate`.
    """,
    "webhooks": """
        Addresses to which the server sends your tenant's events as they are recorded. Deliveries are signed
        as Standard Webhooks says, retried for about 3 hours, and repeated only with the same `webhook-id`.
        These routes need the scope `admin`. A server without a history answers 501.
    """,
    "operations": "For operators and load balancers.",
    "fleet": """
        For operators of a fleet. Only a coordinator serves these routes; any other server answers 404, and
        leaves them out of its own description. What members say to each other is not described here.
    """,
    "classic": "The routes of earlier versions, for programs that use them. New programs use `/v1`.",
}


def describe(app: FastAPI) -> None:
    """Complete ``app.openapi()``: summaries, the problem schema, and which routes need the key."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _build_schema(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _build_schema(app: FastAPI) -> dict[str, Any]:
    schema = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
    )
    every = [operation for operations in schema["paths"].values() for operation in operations.values()]
    for operation in every:
        operation["summary"] = _summary(operation.get("description") or operation["summary"])
    used = {tag for operation in every for tag in operation.get("tags", ())}
    schema["tags"] = [
        {"name": name, "description": inspect.cleandoc(text)} for name, text in _TAGS.items() if name in used
    ]
    components = schema.setdefault("components", {})
    components["schemas"]["Problem"] = TypeAdapter(Problem).json_schema(mode="serialization")
    components["securitySchemes"] = _SECURITY_SCHEMES
    for path, operations in schema["paths"].items():
        if path not in OPEN_PATHS:
            for operation in operations.values():
                operation["security"] = [{name: []} for name in _SECURITY_SCHEMES]
    return schema


def _summary(description: str) -> str:
    """The first sentence. FastAPI would take the function's name."""
    return re.split(r"\.(?=\s|$)", " ".join(description.split()), maxsplit=1)[0].replace("``", "`")

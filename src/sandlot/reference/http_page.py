"""docs/reference/http.md: the routes by group, from the same description as docs/reference/openapi.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sandlot.api.openapi import schema, websockets
from sandlot.reference.docstrings import as_markdown, first_sentence, inline
from sandlot.reference.markdown import GENERATED, anchor, heading, link, page, paragraph, sentence, table
from sandlot.reference.schemas import (
    Schema,
    bounds_of,
    default_of,
    explained_schema,
    fields_table,
    link_to,
    meaning_of,
    name_of,
    type_of,
    type_section,
)

_HEAD = f"""What a server answers to. {GENERATED}

`sandlot serve` listens on `http://127.0.0.1:8000` unless its settings say otherwise. A machine-readable form
of this page is [openapi.json](openapi.json); a server has at `/openapi.json` what it serves itself.

If the server has an API key, send it as `Authorization: Bearer KEY` or `X-API-Key: KEY`. `/health`, `/ready`
and `/openapi.json` need none. Bodies are JSON unless a route says otherwise; an unknown field is an error.
Every answer has the header `X-Request-Id`; a request may bring its own.

A page in a browser can set no header on a WebSocket. It offers two subprotocols instead: `sandlot`, and
`sandlot.key.` followed by the key in base64url without padding. The server accepts the first one.

With a header `Idempotency-Key`, a request can be sent again after a broken connection: it creates one session
or runs one command, however often it arrives."""

_PROBLEMS = """An error is `application/problem+json`; [errors.md](errors.md) lists the codes and what to do.
Most routes can answer with any of"""

_SUCCESS: Final = "Successful Response"  # FastAPI's words for an answer that nobody described
_PROBLEM: Final = "application/problem+json"
_JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    operation: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.method.upper()} {self.path}"

    @property
    def description(self) -> str:
        text: str = self.operation.get("description", "")
        return text

    @property
    def body(self) -> tuple[str, Schema] | None:
        """The media type and the schema of what is sent."""
        content: Mapping[str, Any] = self.operation.get("requestBody", {}).get("content", {})
        return next(((media, each["schema"]) for media, each in content.items()), None)

    def is_of(self, group: str) -> bool:
        return group in self.operation["tags"]

    @property
    def problems(self) -> frozenset[str]:
        answers = self.operation["responses"].items()
        return frozenset(status for status, answer in answers if _PROBLEM in answer.get("content", {}))


@dataclass(frozen=True, slots=True)
class Api:
    """``links``: where each type is explained. ``usual``: the errors that are not repeated at each route."""

    types: Mapping[str, Schema]
    routes: Sequence[Route]
    links: Mapping[str, str]
    usual: frozenset[str]

    def group(self, name: str) -> list[Route]:
        return [route for route in self.routes if route.is_of(name)]


def http_page() -> str:
    described = schema()
    types: dict[str, Schema] = described["components"]["schemas"]
    groups: dict[str, str] = {tag["name"]: tag["description"] for tag in described["tags"]}
    routes = list(_routes(described, groups))
    # What is sent is explained at the route that takes it.
    sent = {name_of(route.body[1]): f"#{anchor(route.name)}" for route in routes if route.body is not None}
    links = {name: sent.get(name, link_to(name)) for name in types}
    api = Api(types, routes, links, _usual(routes))
    return page(
        heading(1, "HTTP API"),
        *(paragraph(text) for text in _HEAD.split("\n\n")),
        paragraph(f"{_PROBLEMS} {', '.join(sorted(api.usual))}. They are not repeated below."),
        heading(2, "Routes"),
        *(_overview(name, api.group(name)) for name in groups),
        *(_group(name, text, api) for name, text in groups.items()),
        heading(2, "Types"),
        paragraph("What routes answer with, and parts of what is sent."),
        *(type_section(3, name, types[name], links) for name in sorted(types.keys() - sent.keys())),
    )


def _routes(described: Mapping[str, Any], groups: Iterable[str]) -> Iterator[Route]:
    """In the order of the groups, and within a group in that of the code."""
    for group in groups:
        for path, operations in described["paths"].items():
            for method, operation in operations.items():
                route = Route(method, path, operation)
                if route.is_of(group):
                    yield route


def _usual(routes: Sequence[Route]) -> frozenset[str]:
    """The errors that most routes share. A route may document its own response for one of these statuses."""
    counted = Counter(status for route in routes for status in route.problems)
    return frozenset(status for status, count in counted.items() if count > len(routes) / 2)


def _sockets(routes: Sequence[Route]) -> dict[str, str]:
    """The WebSockets directly below these routes, with their descriptions."""
    paths = {route.path for route in routes}
    return {
        f"WebSocket {path}": text for path, text in websockets().items() if path.rpartition("/")[0] in paths
    }


def _overview(group: str, routes: Sequence[Route]) -> str:
    shown = {route.name: route.description for route in routes} | _sockets(routes)
    return page(
        paragraph(f"**{link(group.capitalize())}**"),
        table(
            ("route", "what it does"),
            ((link(f"`{name}`", name), inline(first_sentence(text))) for name, text in shown.items()),
        ),
    )


def _group(name: str, description: str, api: Api) -> str:
    routes = api.group(name)
    return page(
        heading(2, name.capitalize()),
        as_markdown(description),
        *(_section(route, api) for route in routes),
        *(page(heading(3, f"`{name}`"), as_markdown(text)) for name, text in _sockets(routes).items()),
    )


def _section(route: Route, api: Api) -> str:
    return page(
        heading(3, f"`{route.name}`"),
        as_markdown(route.description),
        _parameters(route, api),
        _body(route, api),
        _answers(route, api),
    )


def _parameters(route: Route, api: Api) -> str:
    """Of the query and the headers; those in the path speak for themselves."""
    rows = [
        (
            f"`{each['name'].title()}` (header)" if each["in"] == "header" else f"`{each['name']}`",
            type_of(each["schema"], api.links).removesuffix(" or null"),
            default_of(each["schema"], required=each.get("required", False)),
            f"{meaning_of(each.get('description', ''))} {bounds_of(each['schema'])}",
        )
        for each in route.operation.get("parameters", ())
        if each["in"] != "path"
    ]
    return table(("parameter", "type", "default", "meaning"), rows)


def _body(route: Route, api: Api) -> str:
    if route.body is None:
        return ""
    media, body = route.body
    name = name_of(body)
    body = api.types.get(name, body)
    if "properties" not in body:
        return paragraph(f"Body: `{media}`.")
    kind = "Body" if media == _JSON else f"Body (`{media}`)"
    told = f"`{name}`. {meaning_of(explained_schema(body).text)}" if name else ""
    return page(paragraph(f"{kind}: {told}"), fields_table(body, api.links, asked=True))


def _answers(route: Route, api: Api) -> str:
    rows = [
        (status, _answer_body(answer, api), _answer_meaning(answer))
        for status, answer in sorted(route.operation["responses"].items())
        if status not in api.usual or _PROBLEM not in answer.get("content", {})
    ]
    return table(("answer", "body", "meaning"), rows)


def _answer_body(answer: Mapping[str, Any], api: Api) -> str:
    shown = [
        type_of(each.get("schema", {}), api.links) if media == _JSON else f"`{media}`"
        for media, each in answer.get("content", {}).items()
    ]
    return " or ".join(shown) or "none"


def _answer_meaning(answer: Mapping[str, Any]) -> str:
    text = answer["description"]
    return "" if text == _SUCCESS else sentence(text)

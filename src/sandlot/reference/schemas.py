"""JSON schemas of an OpenAPI description as Markdown: types in words, and the fields of bodies as tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from sandlot.reference.docstrings import Explained, explained, inline
from sandlot.reference.markdown import anchor, heading, page, paragraph, sentence, table

Schema = Mapping[str, Any]

_REFERENCE: Final = "#/components/schemas/"
# A larger bound is the largest number that fits, and tells a reader nothing.
_LARGEST_BOUND: Final = 2**53


def type_heading(name: str) -> str:
    """Not the name alone: ``Catalogue`` is a group of routes as well."""
    return f"type {name}"


def type_of(schema: Schema, links: Mapping[str, str]) -> str:
    if "$ref" in schema:
        name = name_of(schema)
        return f"[`{name}`]({links[name]})"
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(type_of(each, links) for each in schema[several])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(each)}`" for each in schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        return f"list of {type_of(schema.get('items', {}), links)}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"map of string to {type_of(schema['additionalProperties'], links)}"
    if kind == "string" and schema.get("format") == "binary":
        return "bytes"
    return str(kind or "any")


def bounds_of(schema: Schema) -> str:
    """Of a number: ``1 to 1000``."""
    for each in schema.get("anyOf", ()):
        if told := bounds_of(each):
            return told
    low, high = schema.get("minimum"), schema.get("maximum")
    if high is not None and high > _LARGEST_BOUND:
        high = None
    if low is not None and high is not None:
        return f"{low:,.10g} to {high:,.10g}."
    return f"At least {low:g}." if low else ""


def default_of(schema: Schema, *, required: bool) -> str:
    if required:
        return "required"
    return f"`{json.dumps(schema['default'])}`" if schema.get("default") is not None else ""


def meaning_of(text: str) -> str:
    """Of a field or parameter, in the words of JSON."""
    return sentence(inline(text).replace("`None`", "`null`"))


def explained_schema(schema: Schema) -> Explained:
    names = schema.get("properties") or [str(each) for each in schema.get("enum", ())]
    return explained(schema.get("description", ""), list(names))


def fields_table(schema: Schema, links: Mapping[str, str], *, asked: bool) -> str:
    """``asked``: the schema is part of a request, so defaults are shown."""
    told = explained_schema(schema)
    required = schema.get("required", ())
    rows = [
        (
            f"`{name}`",
            type_of(each, links),
            default_of(each, required=name in required) if asked else "",
            meaning_of(told.meanings.get(name, each.get("description", ""))),
        )
        for name, each in schema.get("properties", {}).items()
    ]
    return table(("field", "type", "default", "meaning"), rows)


def type_section(level: int, name: str, schema: Schema, links: Mapping[str, str]) -> str:
    told = explained_schema(schema)
    members = [
        (f"`{json.dumps(each)}`", meaning_of(told.meanings.get(each, ""))) for each in schema.get("enum", ())
    ]
    return page(
        heading(level, type_heading(name)),
        paragraph(meaning_of(told.text)),
        fields_table(schema, links, asked=False),
        table(("value", "meaning"), members),
    )


def name_of(schema: Schema) -> str:
    """The name of a named type; empty for an inline schema."""
    return str(schema.get("$ref", schema.get("title", ""))).removeprefix(_REFERENCE)


def link_to(name: str) -> str:
    return f"#{anchor(type_heading(name))}"

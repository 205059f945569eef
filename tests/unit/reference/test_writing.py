"""Docstrings, signatures and schemas as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

import pytest

from sandlot.domain.session import Never
from sandlot.reference.docstrings import as_markdown, explained, first_sentence, inline
from sandlot.reference.markdown import anchor, page_links, paragraph, sentence, table
from sandlot.reference.schemas import bounds_of, type_of
from sandlot.reference.signatures import signature, type_text

Words = str | Sequence[str]
OnText = Callable[[str], Any]
Choice = Literal["error", "keep"]
Timeout = float | Never


class Options(TypedDict, total=False):
    size: int


def call(
    self: Any, words: Words, *, mode: int = 0o755, _hidden: int = 0, **options: Unpack[Options]
) -> Words: ...


def test_lines_that_explain_fields_are_taken_out_of_the_text() -> None:
    told = explained(
        "What it is.\n\nsize: in bytes,\n    and more.\nat, by: where.\nother: not a field.",
        ["size", "at", "by"],
    )
    assert told.text == "What it is.\n\nother: not a field."
    assert told.meanings == {"size": "in bytes, and more.", "at": "where.", "by": "where."}


def test_a_docstring_is_paragraphs_and_blocks() -> None:
    assert (
        as_markdown("One\ntwo.\n\n    a  b\n    c\n\n``Three``.")
        == "One two.\n\n```\na  b\nc\n```\n\n`Three`."
    )


def test_names_with_a_section_are_links() -> None:
    assert inline("``Result`` or ``x``", {"Result": "#result"}) == "[`Result`](#result) or `x`"


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("Run it. Then wait.", "Run it."),
        ("Read a.b and go on.", "Read a.b and go on."),
        ("No stop", "No stop"),
        ("One\nline.\n\nTwo.", "One line."),
    ],
)
def test_first_sentence(text: str, first: str) -> None:
    assert first_sentence(text) == first


def test_code_is_not_broken_over_lines() -> None:
    text = "word " * 18 + "`a b c d e f g h i`"
    assert "`a b c d e f g h i`" in paragraph(text)
    assert len(paragraph(text).splitlines()) == 2


def test_a_table_has_no_empty_columns_and_no_bare_bars() -> None:
    expected = "| a | c |\n|---|---|\n| x \\| y | 1 |\n| z | 2 |"
    assert table(("a", "b", "c"), [("x | y", "", "1"), ("z", "", "2")]) == expected
    assert table(("a",), []) == ""


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("`sandlot files ls`", "sandlot-files-ls"),
        ("`GET /v1/sessions/{session_id}`", "get-v1sessionssession_id"),
        ("Exec.status", "execstatus"),
        ("class ExecStatus", "class-execstatus"),
    ],
)
def test_anchor(text: str, target: str) -> None:
    assert anchor(text) == target


def test_paths_of_pages_become_links() -> None:
    told = "See docs/reference/settings.md and (docs/howto/move-from-e2b.md)."
    linked = page_links(told)
    assert (
        linked == "See [settings.md](settings.md) and ([howto/move-from-e2b.md](../howto/move-from-e2b.md))."
    )
    assert page_links(linked) == linked


def test_sentence() -> None:
    assert [sentence("in bytes"), sentence("Done."), sentence("")] == ["In bytes.", "Done.", ""]


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        ("Words | None", "str | Sequence[str] | None"),
        ("OnText", "Callable[[str], Any]"),
        ("Choice", '"error" | "keep"'),
        ("Timeout | None", "float | NEVER | None"),
        ("int | Literal['a', 'b']", 'int | "a" | "b"'),
        ("builtins.list[Mapping[str, int]]", "list[Mapping[str, int]]"),
    ],
)
def test_aliases_are_spelled_out(annotation: str, text: str) -> None:
    assert type_text(annotation, globals()) == text


def test_a_signature_has_no_private_parameters() -> None:
    assert signature("call", call, "Owner") == (
        "call(words: str | Sequence[str], *, mode: int = 0o755, **options: Options) -> str | Sequence[str]"
    )


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string"}, "string"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "integer or null"),
        ({"type": "array", "items": {"$ref": "#/components/schemas/Entry"}}, "list of [`Entry`](#entry)"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "map of string to string"),
        ({"enum": ["a", "b"], "type": "string"}, '`"a"` or `"b"`'),
        ({"type": "string", "format": "binary"}, "bytes"),
        ({}, "any"),
    ],
)
def test_types_of_schemas(schema: Mapping[str, Any], text: str) -> None:
    assert type_of(schema, {"Entry": "#entry"}) == text


def test_bounds_of_schemas() -> None:
    assert bounds_of({"minimum": 1, "maximum": 10_000}) == "1 to 10,000."
    assert bounds_of({"anyOf": [{"minimum": 1, "maximum": 2**63 - 1}, {"type": "null"}]}) == "At least 1."
    assert bounds_of({"minimum": 0, "maximum": 2**63 - 1}) == ""
    assert bounds_of({"type": "string"}) == ""

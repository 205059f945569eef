"""Here-documents: where they end, and what bash replaces in them.

The parser's idea of both differs from bash's in rare cases, and a command could hide in the difference. So
the end is checked against bash's rule, and everything unusual is a doubt.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sandlot.bash.words import is_hiding
from sandlot.domain.policy.commands import UNKNOWN

if TYPE_CHECKING:
    from tree_sitter import Node

_PLAIN: Final = re.compile(rb"[A-Za-z0-9_.-]+")
_QUOTED: Final = re.compile(rb"'([A-Za-z0-9_.-]+)'|\"([A-Za-z0-9_.-]+)\"|\\([A-Za-z0-9_.-]+)")
_EXPANSIONS: Final = frozenset(
    {"simple_expansion", "expansion", "command_substitution", "arithmetic_expansion"}
)
_REDIRECTS: Final = frozenset({"file_redirect", "heredoc_redirect", "herestring_redirect"})
_STATEMENTS: Final = frozenset({
    "pipeline", "list", "command", "redirected_statement", "subshell", "compound_statement", "if_statement",
    "while_statement", "for_statement", "case_statement", "negated_command", "variable_assignment", "ERROR",
    "test_command", "declaration_command", "unset_command", "function_definition", "c_style_for_statement",
    "variable_assignments",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Heredoc:
    """A here-document, and what the parser puts into the same node.

    text: its text, or None if that is not certain. Replaced parts are ``UNKNOWN``.
    expansions: what bash replaces in it.
    words, redirects, statements: what follows on the line where it starts.
    doubt: why it may be something else than it seems to be; empty if there is none.
    """

    text: str | None
    expansions: tuple[Node, ...]
    words: tuple[Node, ...]
    redirects: tuple[Node, ...]
    statements: tuple[Node, ...]
    doubt: str = ""


def read_heredoc(node: Node) -> Heredoc:
    start = body = end = None
    words, redirects, statements = [], [], []
    for child in node.named_children:
        kind = child.type
        if kind == "heredoc_start":
            start = child
        elif kind == "heredoc_body":
            body = child
        elif kind == "heredoc_end":
            end = child
        elif kind in _REDIRECTS:
            redirects.append(child)
        elif kind in _STATEMENTS:
            statements.append(child)
        elif kind != "file_descriptor":
            words.append(child)
    strips_tabs = any(child.type == "<<-" for child in node.children)
    doubt, text = _check(start, body, end, strips_tabs)
    expansions = [] if body is None else [child for child in body.named_children if child.type in _EXPANSIONS]
    if expansions and text is not None:
        text = UNKNOWN
    return Heredoc(text, tuple(expansions), tuple(words), tuple(redirects), tuple(statements), doubt)


def _check(
    start: Node | None, body: Node | None, end: Node | None, strips_tabs: bool
) -> tuple[str, str | None]:
    """Why the here-document is in doubt, and its text if it is not."""
    if start is None or body is None or end is None:
        return "has a here-document without an end", None
    mark = start.text or b""
    quoted = _QUOTED.fullmatch(mark)
    if quoted is None and _PLAIN.fullmatch(mark) is None:
        return "has a here-document with an unusual mark", None
    name = next(group for group in quoted.groups() if group) if quoted else mark
    raw = body.text or b""
    lines = raw.split(b"\n")
    if strips_tabs:
        lines = [line.lstrip(b"\t") for line in lines]
    if name in lines or (end.text or b"").strip(b"\t" if strips_tabs else b"") != name:
        return "has a here-document whose end is not certain", None
    if quoted is None and _is_replaced_unseen(raw, body):
        return "has a here-document in which bash replaces more than the parser sees", None
    return "", b"\n".join(lines).decode("utf-8", "surrogateescape")


def _is_replaced_unseen(raw: bytes, body: Node) -> bool:
    if b"\\\n" in raw or b"`" in raw:
        return True
    place = body.start_byte
    for child in body.named_children:
        if child.type in _EXPANSIONS:
            if is_hiding(raw[place - body.start_byte : child.start_byte - body.start_byte]):
                return True
            place = child.end_byte
    return is_hiding(raw[place - body.start_byte :])

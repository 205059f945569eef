"""Parses bash text with tree-sitter, and finds where bash is known to read it differently."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sandlot.domain.policy.commands import Unclear

if TYPE_CHECKING:
    from tree_sitter import Node, Parser, Tree

# Bash and the parser disagree about some of them; and some have a meaning in ``Word.text``.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
CONTROLS: Final = "has control characters"
# A line break after ``\`` inside a word, on a line of its own, or between a word and the number of a
# redirection; and an escaped blank at the start of a word or behind a quote or bracket: the parser takes them
# for blanks between words, and the number for a word.
_ODD_ESCAPE: Final = re.compile(
    rb"(?:[^\s\\;&|(]|\\.)\\\n(?:[^\s;&|)]|[ \t]*\d+[<>])"
    rb"|(?:\A|\n)[ \t]*\\\n|(?:\A|[\s;&|(){}\[\]$'\"])\\[ \t]"
)
# ``\`` has another meaning inside backquotes, where bash reads the text twice.
_ESCAPE_IN_BACKQUOTES: Final = re.compile(rb"`[^`]*\\[^`]*")
SHOWN_CHARACTERS: Final = 200  # characters of the text that a doubt about all of it shows

_local = threading.local()


@dataclass(frozen=True, slots=True)
class Parsed:
    root: Node
    tree: Tree
    doubts: tuple[Unclear, ...]


def parse(text: str) -> Parsed:
    source = text.encode("utf-8", "surrogatepass")
    # Where the text ends inside a pipe, the parser tries much before it gives up on more; a line break tells
    # it that there is none. Behind a "\\" it would mean something else.
    tree = _parser().parse(source if source.endswith((b"\n", b"\\")) else source + b"\n")
    shown = (text[:SHOWN_CHARACTERS],)
    doubts = []
    if tree.root_node.has_error:
        doubts.append(Unclear(shown, "is not valid bash, or is written in a way that the parser cannot read"))
    if _CONTROL.search(text):
        doubts.append(Unclear(shown, CONTROLS))
    if b"\\" in source and _ODD_ESCAPE.search(source):
        doubts.append(Unclear(shown, "has an escaped blank or line break where the parser sees none"))
    if b"`" in source and _ESCAPE_IN_BACKQUOTES.search(source):
        doubts.append(Unclear(shown, "has a backslash inside backquotes"))
    return Parsed(tree.root_node, tree, tuple(doubts))


def _parser() -> Parser:
    """A parser for each thread: it has a state."""
    parser: Parser | None = getattr(_local, "parser", None)
    if parser is None:
        parser = _local.parser = load_parser()
    return parser


def load_parser() -> Parser:
    import tree_sitter_bash  # here, because programs without a policy need not have it
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))

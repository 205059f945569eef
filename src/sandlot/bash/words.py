"""Turns the words of a parse tree into what bash makes of them: quotes, escapes, braces, wildcards."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from sandlot.bash.braces import BRACKET, CLOSE, COMMA, OPEN, expand_braces
from sandlot.domain.policy.commands import UNKNOWN, WILDCARD, Word

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_SOURCE_CHARACTERS: Final = 500  # of a word, as it is shown

TWO_WORDS: Final = "has two words where the parser sees one"

_BLANK: Final = re.compile(r"[ \t\n]")
_ESCAPE: Final = re.compile(r"\\.", re.DOTALL)
# Most words: nothing in them has a meaning of its own.
_SIMPLE: Final = re.compile(r"[\w./:=@%+-]{1,200}")
# A command of such words, with one blank between two. Its first word is no assignment.
_PLAIN_COMMAND: Final = re.compile(rb"[\w./:@%+-]+(?: [\w./:=@%+-]+)*")
_MARKS: Final = {"*": WILDCARD, "?": WILDCARD, "[": BRACKET, "{": OPEN, "}": CLOSE, ",": COMMA}
_SPECIAL: Final = re.compile(r"\\(.)|([*?\[{},])", re.DOTALL)
_IN_QUOTES: Final = re.compile(r"\\([$`\"\\\n])", re.DOTALL)
_ANSI: Final = re.compile(
    r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|c(.)|(.))", re.DOTALL
)
_ANSI_NAMES: Final = {
    "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
}  # fmt: skip
_ALL_WORDS: Final = re.compile(r"[@*]")
_SET: Final = re.compile(f"{BRACKET}.*\\]", re.DOTALL)
# Bash runs these, but the parser takes some of them for plain text.
_HIDDEN: Final = re.compile(rb"(?<!\\)(?:\\\\)*(?:`|\$[({])")
_SUBSTITUTION: Final = re.compile(r"`|\$[({]")
_ESCAPED_SUBSTITUTION: Final = re.compile(r"\\(?:`|\$[({])")
# The home of another user, the folder before, or one of the folders that ``pushd`` has kept.
_OTHER_FOLDER: Final = re.compile(r"~[^/]+")

_EXPANSIONS: Final = frozenset(
    {"simple_expansion", "expansion", "command_substitution", "process_substitution"}
)
_PLAIN: Final = frozenset({"word", "number", "variable_name", "test_operator", "special_variable_name"})


class WordReader:
    """Reads words, and collects what a walk over the tree has to look into.

    nested: the expansions inside the words that were read.
    doubts: why a word may mean something else than it seems to.
    """

    def __init__(self) -> None:
        self.nested: list[Node] = []
        self.doubts: list[str] = []

    def words(self, node: Node) -> list[Word]:
        """The word, or the words that its braces make of it."""
        source = node_text(node)
        if _SIMPLE.fullmatch(source):
            return [Word(source, source)]
        self._many = False
        text = self._text(node, quoted=False)
        if source[:1] == "~":
            text = _OTHER_FOLDER.sub(UNKNOWN, text, count=1) if text[1:2] != "/" else text
        if len(source) > MAX_SOURCE_CHARACTERS:
            source = source[: MAX_SOURCE_CHARACTERS - 1] + "…"
        if BRACKET in text:
            text = _SET.sub(WILDCARD, text).replace(BRACKET, "[")
        if OPEN not in text:
            return [Word(source, text.replace(CLOSE, "}").replace(COMMA, ","), self._many)]
        expanded = expand_braces(text)
        if expanded is None:
            return [Word(source, UNKNOWN, many=True)]
        return [Word(source, each, self._many) for each in expanded]

    def _text(self, node: Node, *, quoted: bool) -> str:
        kind = node.type
        if kind in _PLAIN:
            return self._unescape(node)
        if kind == "raw_string":
            return node_text(node)[1:-1]
        if kind == "string":
            return self._string(node)
        if kind in ("concatenation", "command_name"):
            if any(a.end_byte < b.start_byte for a, b in pairwise(node.children)):
                self.doubts.append(TWO_WORDS)
            return "".join(self._text(child, quoted=quoted) for child in node.named_children)
        if kind in _EXPANSIONS:
            return self._expansion(node, quoted=quoted)
        if kind == "arithmetic_expansion":
            self.nested.append(node)
            return UNKNOWN
        if kind == "ansi_c_string":
            return _ANSI.sub(_ansi_character, node_text(node)[2:-1])
        if kind == "translated_string":
            return "".join(self._text(child, quoted=quoted) for child in node.named_children)
        if kind == "brace_expression":
            return _SPECIAL.sub(_mark, node_text(node))
        if kind == "extglob_pattern":
            self._look_for_hidden(node)
            return WILDCARD
        self.nested.append(node)
        self.doubts.append("has a word that the parser reads in an unusual way")
        return UNKNOWN

    def _unescape(self, node: Node) -> str:
        text = node_text(node)
        self._look_for_hidden(node)
        if _BLANK.search(text) and _BLANK.search(_ESCAPE.sub("", text)):
            self.doubts.append(TWO_WORDS)
        return _SPECIAL.sub(_mark, text) if _SPECIAL.search(text) else text

    def _look_for_hidden(self, node: Node) -> None:
        if is_hiding(node.text or b""):
            self.doubts.append("has a substitution that the parser does not see")

    def _expansion(self, node: Node, *, quoted: bool) -> str:
        self.nested.append(node)
        if not quoted or (node.type != "command_substitution" and _ALL_WORDS.search(node_text(node))):
            self._many = True
        return UNKNOWN

    def _string(self, node: Node) -> str:
        """A string in double quotes: what is between the expansions is taken from the source."""
        raw, start = node.text or b"", node.start_byte
        parts, place = [], 1
        for child in node.named_children:
            if child.type == "string_content":
                continue
            parts.append(self._quoted(raw[place : child.start_byte - start]))
            parts.append(self._text(child, quoted=True))
            place = child.end_byte - start
        parts.append(self._quoted(raw[place:-1]))
        return "".join(parts)

    def _quoted(self, raw: bytes) -> str:
        if is_hiding(raw):
            self.doubts.append("has a substitution that the parser does not see")
        text = raw.decode("utf-8", "surrogateescape")
        return _IN_QUOTES.sub(lambda found: found[1].replace("\n", ""), text) if "\\" in text else text


def plain_words(command: Node) -> list[Word] | None:
    """The words of a command in which no character has a meaning of its own; None for other commands.

    Bash and the parser cannot disagree about these, and most commands are so: this makes them quick to read.
    """
    raw = command.text or b""
    if len(raw) > MAX_SOURCE_CHARACTERS or not _PLAIN_COMMAND.fullmatch(raw):
        return None
    return [Word(text, text) for text in raw.decode("ascii").split(" ")]


def node_text(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "surrogateescape")


def is_hiding(raw: bytes) -> bool:
    """Whether bash would replace something in this text that the parser takes as it is."""
    return (b"`" in raw or b"$" in raw) and _HIDDEN.search(raw) is not None


def is_hiding_in_quotes(node: Node) -> bool:
    """Whether quoted text has a substitution that bash would see if it read the text once more."""
    text = node_text(node)
    if node.type == "string":
        return _ESCAPED_SUBSTITUTION.search(text) is not None
    return _SUBSTITUTION.search(_ANSI.sub(_ansi_character, text)) is not None


def _mark(found: re.Match[str]) -> str:
    if found[2]:
        return _MARKS[found[2]]
    return "" if found[1] == "\n" else found[1]


def _ansi_character(found: re.Match[str]) -> str:
    for group, base in ((1, 16), (2, 16), (3, 16), (4, 8)):
        if found[group]:
            code = int(found[group], base) & (0xFF if base == 8 else 0xFFFFFFFF)
            # The lowest have a meaning of their own in a word's text.
            return chr(code) if ord(CLOSE) < code < 0x110000 else UNKNOWN
    if found[5]:
        return UNKNOWN
    return _ANSI_NAMES.get(found[6], found[6])

"""The kinds of nodes in a parse tree, by what a walk does with them; and where words begin and end."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tree_sitter import Node

# Nodes that only hold others.
HOLDERS: Final = frozenset({
    "program", "list", "subshell", "compound_statement", "do_group", "if_statement", "elif_clause",
    "else_clause", "while_statement", "case_statement", "case_item", "negated_command",
    "command_substitution", "process_substitution", "binary_expression", "unary_expression",
    "ternary_expression", "postfix_expression", "parenthesized_expression", "simple_expansion",
    "string", "concatenation", "translated_string", "array", "variable_assignments", "command_name",
})  # fmt: skip
# Text without commands in it, as far as the parser can tell.
LEAVES: Final = frozenset({
    "word", "number", "variable_name", "special_variable_name", "test_operator", "file_descriptor", "regex",
    "extglob_pattern", "string_content", "heredoc_content", "brace_expression",
})  # fmt: skip
LITERALS: Final = frozenset({"raw_string", "ansi_c_string", "comment", "heredoc_start", "heredoc_end"})
QUOTED: Final = frozenset({"raw_string", "ansi_c_string", "string"})
# Bash reads quoted text in these once more, and then replaces the substitutions in it.
READ_TWICE: Final = frozenset({
    "arithmetic_expansion", "expansion", "subscript", "test_command", "unset_command",
    "c_style_for_statement",
})  # fmt: skip
REDIRECTS: Final = frozenset({"file_redirect", "heredoc_redirect", "herestring_redirect"})

# The parser skips a lone "-" before a here-document.
_BLANKS: Final = re.compile(rb"(?:[ \t]|\\\n)*(?:(?<=[ \t])-)?(?:[ \t]|\\\n)*")


def misread_gap(node: Node) -> str:
    """How bash splits a command into words where the parser does not, or the other way round; mostly ""."""
    raw, begin = node.text or b"", node.start_byte
    before, end = "", begin
    for child in node.children:
        gap = raw[end - begin : child.start_byte - begin]
        if gap not in (b"", b" ") and not _BLANKS.fullmatch(gap):
            return "has characters between words that the parser skips"
        is_word = child.is_named or (node.type == "command" and child.type != "$")  # not that of $"…"
        kind = child.type if is_word and child.type not in REDIRECTS else ""
        if before and kind and not gap:
            return "has one word where the parser sees two"
        before, end = kind, child.end_byte
        if child.type == "heredoc_redirect":
            break  # its text and what is behind it begin on other lines
    return ""


def takes_a_word_for_a_number(redirect: Node) -> bool:
    """The parser sees the number ``-r2`` in ``-r2>x``. Bash sees a word, and a redirection behind it."""
    return any(
        child.type == "file_descriptor" and not (child.text or b"").isdigit() for child in redirect.children
    )

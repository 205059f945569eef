"""Markdown for generated pages: the same input always gives the same text."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

WIDTH: Final = 100  # characters in a line of prose

_SPACE: Final = "\0"  # in code, while a paragraph is wrapped

GENERATED: Final = "Generated from the code by `make docs`; a test fails if it is out of date."


def page(*blocks: str) -> str:
    """A whole page: blocks with an empty line between them; empty blocks are left out."""
    return "\n\n".join(block.strip("\n") for block in blocks if block.strip()) + "\n"


def heading(level: int, text: str) -> str:
    return f"{'#' * level} {text}"


def anchor(text: str) -> str:
    """The link target that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def link(text: str, target: str | None = None) -> str:
    """To a heading of the same page: by default the heading that is called like the text."""
    return f"[{text}](#{anchor(text) if target is None else anchor(target)})"


def paragraph(text: str) -> str:
    """Prose, wrapped. Code stays in one line."""
    whole = re.sub(r"`[^`]+`", lambda found: found[0].replace(" ", _SPACE), " ".join(text.split()))
    return textwrap.fill(
        whole,
        WIDTH,
        break_long_words=False,
        break_on_hyphens=False,
    ).replace(_SPACE, " ")


def code(text: str, language: str = "") -> str:
    return f"```{language}\n{text}\n```"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Empty without rows. A column that is empty in all rows is left out."""
    kept = [tuple(_cell(text) for text in row) for row in rows]
    if not kept:
        return ""
    used = [number for number in range(len(columns)) if any(row[number] for row in kept)]
    lines = [
        [columns[number] for number in used],
        *([row[number] for number in used] for row in kept),
    ]
    head, *body = (f"| {' | '.join(cells)} |" for cells in lines)
    return "\n".join([head, "|---" * len(used) + "|", *body])


def page_links(text: str) -> str:
    """Paths of pages, as the code names them, as links from docs/reference."""
    return re.sub(r"(?<!\]\()docs/(?:reference/(\w+\.md)|(\w+/[\w-]+\.md))", _page_link, text)


def _page_link(found: re.Match[str]) -> str:
    return f"[{found[1]}]({found[1]})" if found[1] else f"[{found[2]}](../{found[2]})"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


def sentence(text: str) -> str:
    """With a capital letter and a full stop, as it stands in a table."""
    text = text.strip()
    if not text:
        return text
    return text[0].upper() + text[1:] + ("" if text[-1] in ".!?:" else ".")

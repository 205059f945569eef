"""Docstrings as Markdown.

A docstring is paragraphs. An indented block is shown as it stands. Lines of the form ``name: meaning``, whose
names are fields, members or options of the class, explain those:

    memory_bytes: memory, in bytes.
    idle_timeout_s, lifetime_s: seconds; a longer text
        goes on in indented lines.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sandlot.reference import markdown

_FIELD = re.compile(r"(\w+(?:, \w+)*): (.+)")
_CODE = re.compile(r"``(.+?)``", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Explained:
    """A docstring, taken apart: its paragraphs, and the meaning of each name."""

    text: str
    meanings: Mapping[str, str] = field(default_factory=dict)


def own_docstring(thing: object) -> str:
    """Not an inherited one, and not the one that ``dataclass`` makes up."""
    text = vars(thing).get("__doc__") if isinstance(thing, type) else getattr(thing, "__doc__", None)
    if not isinstance(text, str) or (isinstance(thing, type) and text.startswith(f"{thing.__name__}(")):
        return ""
    return inspect.cleandoc(text)


def explained(docstring: str, names: Collection[str]) -> Explained:
    prose: list[str] = []
    meanings: dict[str, str] = {}
    current: tuple[str, ...] = ()
    for line in docstring.splitlines():
        found = _FIELD.fullmatch(line)
        named = tuple(found[1].split(", ")) if found else ()
        if found and set(named) <= set(names):
            current = named
            meanings.update(dict.fromkeys(named, found[2]))
        elif current and line.startswith("    "):
            meanings.update({name: f"{meanings[name]} {line.strip()}" for name in current})
        else:
            current = ()
            prose.append(line)
    return Explained("\n".join(prose).strip(), meanings)


def as_markdown(docstring: str, links: Mapping[str, str] | None = None) -> str:
    """Paragraphs, wrapped; indented blocks as code. ``links``: where each name in code leads to."""
    blocks = re.split(r"\n\s*\n", docstring.strip("\n"))
    return "\n\n".join(_block(block, links or {}) for block in blocks if block.strip())


def _block(block: str, links: Mapping[str, str]) -> str:
    if all(line.startswith("    ") for line in block.splitlines() if line.strip()):
        return markdown.code(textwrap.dedent(block).rstrip())
    return markdown.paragraph(inline(block, links))


def inline(text: str, links: Mapping[str, str] | None = None) -> str:
    """``code`` with one backtick each, and names that have a section of their own as links."""

    def shown(found: re.Match[str]) -> str:
        name = found[1]
        target = (links or {}).get(name)
        return f"`{name}`" if target is None else f"[`{name}`]({target})"

    return _CODE.sub(shown, text)


def first_sentence(docstring: str) -> str:
    """For lists: up to the first full stop that ends a sentence, or the first paragraph."""
    paragraph = " ".join(re.split(r"\n\s*\n", docstring.strip())[0].split())
    found = re.match(r".+?[.:](?= [A-Z`]|$)", paragraph)
    return found[0] if found else paragraph

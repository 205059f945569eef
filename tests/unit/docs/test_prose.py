"""The pages are easy to read: sentences have at most 30 words, lines of prose at most 100 characters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandlot.reference.pages import PAGES

ROOT = Path(__file__).parents[3]
MAX_WORDS = 30
MAX_CHARACTERS = 100

GENERATED = {ROOT / "docs/reference" / name for name in PAGES}
FILES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
HAND_WRITTEN = [path for path in FILES if path not in GENERATED]

HEADING = re.compile(r"#+ ")
LIST_ITEM = re.compile(r"([-*+]|\d+[.)]) +")
RULE = re.compile(r"[-|: ]+")  # the line below a table's head
IMAGE = re.compile(r"!\[[^]]*\]\([^)]*\)")
LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
CODE = re.compile(r"``.+?``|`[^`]+`")
# A mark, closing quotes and brackets, then a space. "1.5" and "README.md" have no space.
END = re.compile(r"(\S*[.!?])([\"')\]*_]*)(?=\s|$)")
HIDDEN = "\1"
MARK = re.compile(r"\0\d+\0")  # of a line's number, inside of a block
WORD = re.compile(r"\0\d+\0|[^\s\0]+")
OPENING = "(\"'*_"
ABBREVIATIONS = {"e.g.", "i.e.", "cf.", "vs.", "approx.", "incl.", "resp."}
MAYBE_AN_END = {"etc.", "no."}  # an end before a capital letter


@dataclass(frozen=True)
class Sentence:
    line: int  # on which it begins
    words: int  # a piece of code is one word, a dash alone is none
    text: str


def lines_of(markdown: str) -> Iterator[tuple[int, str]]:
    """The numbered lines outside of code blocks, comments and headings; empty lines too."""
    fence = ""
    comment = False
    for number, line in enumerate(markdown.splitlines(), 1):
        bare = line.strip().removeprefix(">").strip()
        if fence:
            fence = "" if bare.startswith(fence) else fence
            yield number, ""
        elif bare.startswith(("```", "~~~")):
            fence = bare[:3]
            yield number, ""
        elif comment or bare.startswith("<!--"):
            comment = "-->" not in bare
            yield number, ""
        else:
            yield number, "" if HEADING.match(bare) else line


def sentences(markdown: str) -> list[Sentence]:
    """Of a page. The end of a paragraph, of a list item and of a table's cell ends a sentence too."""
    found: list[Sentence] = []
    block: list[tuple[int, str]] = []
    for number, line in [*lines_of(markdown), (0, "")]:
        text = line.strip().removeprefix(">").strip()
        item = LIST_ITEM.match(text)
        if not text or item or text.startswith("|"):
            found += _split(block)
            block = []
        if text.startswith("|"):
            cells = re.split(r"(?<!\\)\||<br>", text)
            found += [each for cell in cells if not RULE.fullmatch(cell) for each in _split([(number, cell)])]
        elif text:
            block.append((number, text[item.end() :] if item else text))
    return found


def _one_word(code: re.Match[str]) -> str:
    """A piece of code, with its spaces hidden. Marks of lines move before it."""
    return "".join(MARK.findall(code[0])) + re.sub(r"\s+", HIDDEN, MARK.sub("", code[0]))


def _split(block: list[tuple[int, str]]) -> Iterator[Sentence]:
    text = "".join(f"\0{number}\0{line} " for number, line in block)  # code and links may cross lines
    text = IMAGE.sub("", text)
    text = CODE.sub(_one_word, text)
    text = LINK.sub(r"\1", text)
    line = block[0][0] if block else 0
    begin, words = line, []
    for word in WORD.findall(text):
        if word.startswith("\0"):
            line = int(word.strip("\0"))
            continue
        if words and _ends(words[-1], word):
            yield _sentence(begin, words)
            words = []
        begin = begin if words else line
        words.append(word)
    if words:
        yield _sentence(begin, words)


def _sentence(line: int, words: list[str]) -> Sentence:
    count = sum(any(letter.isalnum() for letter in word) for word in words)
    return Sentence(line, count, " ".join(words).replace(HIDDEN, " "))


def _ends(word: str, following: str) -> bool:
    """Whether a sentence ends with this word."""
    end = END.fullmatch(word)
    bare = word.lstrip(OPENING).lower()
    if end is None or bare in ABBREVIATIONS:
        return False
    return bare not in MAYBE_AN_END or following.lstrip(OPENING)[:1].isupper()


def long_lines(markdown: str) -> list[int]:
    """Lines of prose that are too long. Tables, the targets of links and lines of nothing but code may be."""
    return [
        number
        for number, line in lines_of(markdown)
        if len(LINK.sub(r"\1", line)) > MAX_CHARACTERS
        and not line.lstrip().startswith("|")
        and " " in CODE.sub("", line).strip()
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_sentence_is_too_long(path: Path) -> None:
    long = [each for each in sentences(path.read_text(encoding="utf-8")) if each.words > MAX_WORDS]
    shown = [f"{path.relative_to(ROOT)}:{each.line}: {each.words} words: {each.text}" for each in long]
    if shown:
        pytest.fail("\n".join([f"Split each of these into sentences of at most {MAX_WORDS} words:", *shown]))


@pytest.mark.parametrize("path", HAND_WRITTEN, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_line_of_prose_is_too_long(path: Path) -> None:
    """Generated pages: tests/unit/reference."""
    shown = [f"{path.relative_to(ROOT)}:{line}" for line in long_lines(path.read_text(encoding="utf-8"))]
    if shown:
        pytest.fail("\n".join([f"Wrap these lines at {MAX_CHARACTERS} characters:", *shown]))


# --- the checks themselves -----------------------------------------------------------------------


def split(markdown: str) -> list[tuple[int, str]]:
    return [(each.line, each.text) for each in sentences(markdown)]


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        ("One. Two!\nThree?", [(1, "One."), (1, "Two!"), (2, "Three?")]),
        ("It takes 1.5 s, e.g. in\nREADME.md. Next.", [(1, "It takes 1.5 s, e.g. in README.md."), (2, "Next.")]),
        ("Ports, files etc. are in. Or etc. Next.", [(1, "Ports, files etc. are in."), (1, "Or etc."), (1, "Next.")]),
        ('He said "stop." (Or not.) **Bold.** Then.', [(1, 'He said "stop."'), (1, "(Or not.)"), (1, "**Bold.**"), (1, "Then.")]),
        ("Run `a. B.\nc` now. `x` waits.", [(1, "Run `a. B. c` now."), (2, "`x` waits.")]),
        ("See [the\npage](a/b.md#c. D). End", [(1, "See the page."), (2, "End")]),
        ("# A heading. Two.\n\ntext\n", [(3, "text")]),
        ("Do:\n- one\n  more\n- two\n\n1. three", [(1, "Do:"), (2, "one more"), (4, "two"), (6, "three")]),
        ("| a | b. C |\n|---|---|\n| `x \\| y` | z \\| w |", [(1, "a"), (1, "b."), (1, "C"), (3, "`x \\| y`"), (3, "z \\| w")]),
        ("before\n```bash\necho a. B.\n```\nafter", [(1, "before"), (5, "after")]),
        ("<!-- a. B.\nC. -->\n> quoted\n> text", [(3, "quoted text")]),
        ("![a picture. B](c.svg)", []),
    ],
)  # fmt: skip
def test_sentences(markdown: str, expected: list[tuple[int, str]]) -> None:
    assert split(markdown) == expected


def test_words() -> None:
    (sentence,) = sentences("One \u2013 `two words` · [three four](five/six) 7 … https://eight.example/a b")
    assert sentence.words == 7


@pytest.mark.parametrize("markdown", ["{}.", "- {}", "| a | {} |", "> {}", "See [{}](x)."])
def test_a_long_sentence_is_found_wherever_it_stands(markdown: str) -> None:
    enough, too_many = ("\n\n" + markdown.format(" ".join(["w"] * count)) for count in (28, 31))
    assert [each.words > MAX_WORDS for each in sentences(enough) if each.words > 1] == [False]
    assert [(each.line, each.words > MAX_WORDS) for each in sentences(too_many) if each.words > 1] == [
        (3, True)
    ]


def test_long_lines() -> None:
    long = "word " * 21
    link = f"{'word ' * 15}[text](https://example.org/{'a' * 60})"
    assert long_lines(f"{long}\n| {long} |\n```\n{long}\n```\n`{long}`\n{link}\n{long}") == [1, 8]

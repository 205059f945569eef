"""The parser of the fake's shell: turns text into a tree of commands and rejects unknown syntax.

script    pipeline ((";" | newline | "&&" | "||") pipeline)*
pipeline  ["!"] command ("|" command)*
command   (NAME=word)* word* redirect*  |  "(" script ")" redirect*
redirect  [n] (">" | ">>" | "<") word  |  [n] ">&" m  |  "&>" word
word      text, 'text', "text", \\c, $NAME, ${NAME}, ${NAME:-word}, $?, $$, $(script)
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_REDIRECT = re.compile(r"(\d)?(>>|>&|>|<)|&>")
_BRACES = re.compile(r"\{[^{}]*(,|\.\.)[^{}]*\}")
_BLANK = " \t"
_ENDS_WORD = " \t\n;&|<>()"
_KEYWORDS = {"if", "for", "while", "until", "case", "function", "select", "{", "[["}
MAX_DEPTH = 50


class SyntaxProblem(Exception):
    """The text is wrong, or it is bash that this small shell does not know."""


@dataclass(frozen=True, slots=True)
class Text:
    value: str
    quoted: bool


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    quoted: bool
    default: Word | None = None


@dataclass(frozen=True, slots=True)
class Substitution:
    script: Script
    quoted: bool


Word = tuple[Text | Variable | Substitution, ...]


@dataclass(frozen=True, slots=True)
class Redirect:
    """``operator`` is >, >>, < or >&. For >& the target is the number of a descriptor."""

    descriptor: int
    operator: str
    target: Word


@dataclass(frozen=True, slots=True)
class Simple:
    assignments: tuple[tuple[str, Word], ...]
    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...]


@dataclass(frozen=True, slots=True)
class Subshell:
    script: Script
    redirects: tuple[Redirect, ...]


@dataclass(frozen=True, slots=True)
class Pipeline:
    commands: tuple[Simple | Subshell, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Script:
    """Pipelines, each with the connector before it: ";", "&&" or "||"."""

    steps: tuple[tuple[str, Pipeline], ...]


def parse(text: str) -> Script:
    parser = _Parser(text)
    script = parser.script()
    if parser.position < len(text):
        raise SyntaxProblem(f"syntax error near unexpected token `{text[parser.position]}'")
    return script


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self.position = 0
        self._depth = 0

    def script(self) -> Script:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise SyntaxProblem("syntax error: nested too deeply")
        steps: list[tuple[str, Pipeline]] = []
        connector = ";"
        while True:
            self._skip(_BLANK + "\n")
            if not self._next() or self._peek(")"):
                break
            steps.append((connector, self._pipeline()))
            connector = ";"
            self._skip(_BLANK)
            if self._take("&&"):
                connector = "&&"
            elif self._take("||"):
                connector = "||"
            elif self._peek("&"):
                raise SyntaxProblem("the fake's shell has no background jobs: use start()")
            elif not self._take(";") and not self._take("\n"):
                break
        if connector != ";":
            raise SyntaxProblem("syntax error: unexpected end of file")
        self._depth -= 1
        return Script(tuple(steps))

    def _pipeline(self) -> Pipeline:
        negated = False
        if self._text.startswith("! ", self.position):
            self.position += 2
            negated = True
        commands = [self._command()]
        self._skip(_BLANK)
        while self._peek("|") and not self._peek("||"):
            self.position += 1
            self._skip(_BLANK + "\n")
            commands.append(self._command())
            self._skip(_BLANK)
        return Pipeline(tuple(commands), negated)

    def _command(self) -> Simple | Subshell:
        self._skip(_BLANK)
        if self._peek("((") and self._text.find("))", self.position) > 0:
            raise SyntaxProblem("syntax error: the fake's shell has no arithmetic")
        if self._take("("):
            script = self.script()
            if not self._take(")"):
                raise SyntaxProblem("syntax error: `)' expected")
            return Subshell(script, tuple(self._redirects()))
        assignments: list[tuple[str, Word]] = []
        words: list[Word] = []
        redirects: list[Redirect] = []
        while True:
            redirects += self._redirects()
            if not self._next() or self._next()[0] in _ENDS_WORD:
                break
            assigned = _ASSIGNMENT.match(self._text, self.position)
            if assigned and not words:
                self.position = assigned.end()
                assignments.append((assigned[1], self._word()))
            else:
                words.append(self._word())
        if not words and not assignments and not redirects:
            token = self._next()[:1] or "newline"
            raise SyntaxProblem(f"syntax error near unexpected token `{token}'")
        first = words[0][0] if words and words[0] else None
        if isinstance(first, Text) and not first.quoted and first.value in _KEYWORDS:
            raise SyntaxProblem(f"syntax error: the fake's shell does not know `{first.value}'")
        return Simple(tuple(assignments), tuple(words), tuple(redirects))

    def _redirects(self) -> list[Redirect]:
        found: list[Redirect] = []
        while True:
            self._skip(_BLANK)
            match = _REDIRECT.match(self._text, self.position)
            if match is None:
                return found
            if self._text.startswith("<<", match.start(2) if match[2] else match.start()):
                raise SyntaxProblem("syntax error: the fake's shell does not know `<<'")
            self.position = match.end()
            self._skip(_BLANK)
            target = self._word()
            if not target:
                raise SyntaxProblem("syntax error near unexpected token `newline'")
            if match[0] == "&>":
                found += [Redirect(1, ">", target), Redirect(2, ">&", (Text("1", quoted=False),))]
                continue
            descriptor = int(match[1] or match[2] != "<")
            known = descriptor == 0 if match[2] == "<" else descriptor in (1, 2)
            if match[2] == ">&":
                known = known and target in ((Text("1", quoted=False),), (Text("2", quoted=False),))
            if not known:
                raise SyntaxProblem(f"syntax error: the fake's shell knows `{match[2]}' for 0, 1 and 2 alone")
            found.append(Redirect(descriptor, match[2], target))

    # --- words ------------------------------------------------------------------------------------

    def _word(self) -> Word:
        parts: list[Text | Variable | Substitution] = []
        while self._next() and self._text[self.position] not in _ENDS_WORD:
            character = self._text[self.position]
            if character == "'":
                end = self._text.find("'", self.position + 1)
                if end < 0:
                    raise SyntaxProblem("unexpected EOF while looking for matching `''")
                parts.append(Text(self._text[self.position + 1 : end], quoted=True))
                self.position = end + 1
            elif character == '"':
                self.position += 1
                parts += self._double_quoted()
            elif character == "\\":
                parts.append(
                    Text(self._text[self.position + 1 : self.position + 2].replace("\n", ""), quoted=True)
                )
                self.position += 2
            elif character == "`":
                raise SyntaxProblem("syntax error: the fake's shell does not know ``': use $( )")
            elif character == "$":
                parts.append(self._dollar(quoted=False))
            else:
                plain = self._text_until(_ENDS_WORD + "'\"\\$`", quoted=False)
                parts.append(plain)
                if _BRACES.search(plain.value):
                    raise SyntaxProblem("syntax error: the fake's shell does not expand braces: quote them")
        return tuple(parts)

    def _double_quoted(self) -> Word:
        parts: list[Text | Variable | Substitution] = [Text("", quoted=True)]
        while self._next():
            character = self._text[self.position]
            if character == '"':
                self.position += 1
                return tuple(parts)
            if character == "`":
                raise SyntaxProblem("syntax error: the fake's shell does not know ``': use $( )")
            if character == "$":
                parts.append(self._dollar(quoted=True))
            elif character == "\\" and self._text[self.position + 1 : self.position + 2] in (
                "$",
                "`",
                '"',
                "\\",
                "\n",
            ):
                parts.append(Text(self._text[self.position + 1].replace("\n", ""), quoted=True))
                self.position += 2
            elif character == "\\":
                parts.append(Text("\\", quoted=True))
                self.position += 1
            else:
                parts.append(self._text_until('"$\\`', quoted=True))
        raise SyntaxProblem("unexpected EOF while looking for matching `\"'")

    def _dollar(self, *, quoted: bool) -> Text | Variable | Substitution:
        self.position += 1
        if self._peek("(("):
            raise SyntaxProblem("syntax error: the fake's shell has no arithmetic")
        if self._take("("):
            script = self.script()
            if not self._take(")"):
                raise SyntaxProblem("unexpected EOF while looking for matching `)'")
            return Substitution(script, quoted)
        if self._take("{"):
            name = self._name()
            default: Word | None = None
            if self._take(":-"):
                default = self._default()
            if not name or not self._take("}"):
                raise SyntaxProblem("bad substitution: the fake's shell knows ${NAME} and ${NAME:-word}")
            return Variable(name, quoted, default)
        name = self._name()
        if not name and (self._next() in ("!", "-") or (not quoted and self._next() in ("'", '"'))):
            raise SyntaxProblem(f"syntax error: the fake's shell does not know `${self._next()}'")
        return Variable(name, quoted) if name else Text("$", quoted)

    def _default(self) -> Word:
        parts: list[Text | Variable | Substitution] = []
        while self._next() and not self._peek("}"):
            if self._peek("$"):
                parts.append(self._dollar(quoted=True))
            else:
                parts.append(self._text_until("}$", quoted=True))
        return tuple(parts)

    def _name(self) -> str:
        match = _NAME.match(self._text, self.position)
        name = match[0] if match else self._text[self.position : self.position + 1]
        if match is None and (not name or name not in "?$#@*0123456789"):
            return ""
        self.position += len(name)
        return name

    def _text_until(self, ends: str, *, quoted: bool) -> Text:
        begin = self.position
        while self.position < len(self._text) and self._text[self.position] not in ends:
            self.position += 1
        return Text(self._text[begin : self.position], quoted)

    # --- characters -------------------------------------------------------------------------------

    def _next(self) -> str:
        return self._text[self.position : self.position + 1]

    def _peek(self, token: str) -> bool:
        return self._text.startswith(token, self.position)

    def _take(self, token: str) -> bool:
        if not self._peek(token):
            return False
        self.position += len(token)
        return True

    def _skip(self, characters: str) -> None:
        """Skips blanks, and comments where a word could begin."""
        while self._next():
            if self._text[self.position] in characters:
                self.position += 1
            elif self._text.startswith("\\\n", self.position):
                self.position += 2
            elif self._peek("#") and (self.position == 0 or self._text[self.position - 1] in _ENDS_WORD):
                end = self._text.find("\n", self.position)
                self.position = len(self._text) if end < 0 else end
            else:
                return

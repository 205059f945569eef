"""What a command line does, as far as its text says: the values that a policy decides over.

``sandlot.bash`` reads bash text into a ``Reading``. Text that bash would replace when it runs is marked in
the words, so that a rule can tell "does not match" from "nobody can know yet".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

# Stands for any text: a variable, the output of a command. Bash text cannot contain it.
UNKNOWN: Final = "\0"
# Stands for any text without "/": a wildcard such as * that matches the names of files.
WILDCARD: Final = "\1"


# A reading makes hundreds of words and commands. Named tuples are made quicker than frozen dataclasses.
class Word(NamedTuple):
    """One word of a command.

    source: the word as it is written.
    text: what bash makes of it, with ``UNKNOWN`` and ``WILDCARD`` where that is not in the text.
    many: it may become any number of words, also none.
    """

    source: str
    text: str
    many: bool = False

    @property
    def known(self) -> bool:
        return UNKNOWN not in self.text


class Command(NamedTuple):
    """A program that runs, with its arguments.

    program: its name or path.
    arguments: the words after it.
    inputs: text that it reads from a here-document, a here-string or an ``echo`` before it.
    input_from: the programs whose output it gets, by pipe or substitution.
    folders: the folders that the text changes into before; relative paths may start at any of them.
    """

    program: str
    arguments: tuple[Word, ...] = ()
    inputs: tuple[Word, ...] = ()
    input_from: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        return (self.program, *(word.source for word in self.arguments))


@dataclass(frozen=True, slots=True)
class Write:
    """A redirection that opens a file for writing, or a connection (``/dev/tcp/…``)."""

    target: Word
    folders: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        return (">", self.target.source)


@dataclass(frozen=True, slots=True)
class Assignment:
    """A variable that gets a value."""

    name: str

    @property
    def words(self) -> tuple[str, ...]:
        return (f"{self.name}=",)


@dataclass(frozen=True, slots=True)
class Unclear:
    """A part of the text whose effect the text does not tell.

    words: the part.
    why: what is unclear about it, as the end of a sentence: "It …".
    """

    words: tuple[str, ...]
    why: str


Step = Command | Write | Assignment


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything that a text runs, writes or assigns, in the order of the text, and what is unclear."""

    steps: tuple[Step, ...] = ()
    unclear: tuple[Unclear, ...] = ()

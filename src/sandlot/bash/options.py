"""Skips the options of programs that run others, to find the command behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sandlot.domain.policy.commands import UNKNOWN, Word


@dataclass(frozen=True, slots=True)
class Options:
    """A program's options.

    values: those that take a value.
    flags: those that take none.
    numbers: whether an option may be a number, such as the -5 of ``nice -5``.
    """

    values: frozenset[str]
    flags: frozenset[str]
    numbers: bool = False

    def takes_value(self, option: str) -> bool:
        return option in self.values

    def is_flag(self, option: str) -> bool:
        return option in self.flags or (self.numbers and option[1:].isdigit())


def options(values: str = "", flags: str = "", *, numbers: bool = False) -> Options:
    return Options(frozenset(values.split()), frozenset(flags.split()), numbers)


def skip_options(
    arguments: Sequence[Word], known: Options, program: str, *, anywhere: bool = False
) -> tuple[Sequence[Word], dict[str, str], list[str]]:
    """The words after the options, the options with their values, and doubts about them.

    ``anywhere``: options may come after other words too, and all of those are skipped.
    """
    found: dict[str, str] = {}
    doubts: list[str] = []
    place = 0
    while place < len(arguments):
        text = arguments[place].text
        if arguments[place].many or text.startswith(UNKNOWN):
            doubts.append(f"gets options of {program} from a variable")
            break
        if text == "--":
            place += 1
            break
        if not text.startswith(("-", "+")) or (text in "-+" and not known.is_flag(text)):
            if not anywhere:
                break
            place += 1
            continue
        option, value, is_known = _split(text, known)
        if not is_known:
            doubts.append(f"uses the option {text[:40]} of {program}, which is not known here")
        place += 1
        if value is None and known.takes_value(option):
            value = arguments[place].text if place < len(arguments) else ""
            place += 1
        found[text] = ""  # letters written together count, too
        found[option] = value or ""
    return arguments[place:], found, doubts


def _split(text: str, known: Options) -> tuple[str, str | None, bool]:
    """An option, its value if the same word has it, and whether the program is known to have it."""
    if text.startswith("--"):
        name, equals, value = text.partition("=")
        return name, value if equals else None, known.takes_value(name) or known.is_flag(name)
    if known.takes_value(text) or known.is_flag(text):
        return text, None, True
    sign = text[0]
    for place in range(1, len(text)):
        letter = sign + text[place]
        if known.takes_value(letter):
            rest = text[place + 1 :]
            # The value is the rest of the word, or else the next word.
            return letter, rest or None, True
        if not known.is_flag(letter):
            return text, None, False
    return text, None, True

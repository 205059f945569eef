"""Whether a rule applies to a command: yes, no, or maybe, if it depends on what is not known yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from sandlot.domain.policy.commands import UNKNOWN, Assignment, Command, Word, Write
from sandlot.domain.policy.patterns import Match, Pattern
from sandlot.domain.policy.policy import Rule

# Options before a subcommand that take the next word as their value.
VALUE_OPTIONS: Final[Mapping[str, frozenset[str]]] = {
    "git": frozenset(
        {"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--config-env", "--super-prefix"}
    ),
    "docker": frozenset({"-c", "--context", "-H", "--host", "-l", "--log-level", "--config"}),
    "kubectl": frozenset({"-n", "--namespace", "--context", "--cluster", "--kubeconfig", "-s", "--server"}),
}
# ... and those that take none.
PLAIN_OPTIONS: Final[Mapping[str, frozenset[str]]] = {
    "git": frozenset({"-p", "-P", "--paginate", "--no-pager", "--bare", "--no-replace-objects"}),
}


def match_rule(rule: Rule, step: Command | Write | Assignment) -> Match:
    """``rule`` is about the same as ``step``: about its program, about files or about variables."""
    if isinstance(step, Command):
        return _match_command(rule, step)
    if isinstance(step, Write):
        return _of_all_folders(rule.writes, step.target, step.folders, rule.allows)
    return _any(rule.assigns, step.name)


def base_name(program: str) -> str:
    return program.rpartition("/")[2]


def _match_command(rule: Rule, command: Command) -> Match:
    result = Match.YES
    if rule.subcommand:
        result = min(result, max(_match_subcommand(words, command) for words in rule.subcommand))
    if result and rule.input_from:
        names = (_any(rule.input_from, base_name(program)) for program in command.input_from)
        result = min(result, max(names, default=Match.NO))
    if result and rule.flags:
        result = min(result, _match_flags(rule, command.arguments))
    if result and rule.arguments:
        result = min(result, _match_arguments(rule, command))
    return result


def _any(patterns: Iterable[Pattern], text: str) -> Match:
    return max((pattern.match(text) for pattern in patterns), default=Match.NO)


def _of_all_folders(
    patterns: Sequence[Pattern], word: Word, folders: tuple[str, ...], allows: bool, text: str | None = None
) -> Match:
    """A rule that allows must match from every folder where the command may run."""
    text = word.text if text is None else text
    if not patterns:
        return Match.NO
    if not allows or not folders or text.startswith(("/", "~")):
        return max(pattern.match(text, folders) for pattern in patterns)
    readings = (text, *(f"{folder}/{text}" for folder in folders))
    return min(max(pattern.match(reading) for pattern in patterns) for reading in readings)


# --- subcommands ----------------------------------------------------------------------------------


def _match_subcommand(wanted: tuple[str, ...], command: Command) -> Match:
    """Options before the subcommand may take the next word as their value. Where that is not known, both
    readings count, and the answer is "maybe" if they differ.
    """
    found = {_leads(wanted, command.arguments[start:]) for start in _starts(command)}
    return found.pop() if len(found) == 1 else Match.MAYBE


def _starts(command: Command) -> Iterator[int]:
    name = base_name(command.program)
    takes_value = VALUE_OPTIONS.get(name, frozenset())
    plain = PLAIN_OPTIONS.get(name, frozenset())
    place, arguments = 0, command.arguments
    while place < len(arguments):
        text = arguments[place].text
        if not text.startswith("-"):
            yield place
            return
        place += 1
        if text in takes_value:
            place += 1
        elif text not in plain and "=" not in text and _is_operand(arguments, place):
            yield place
            place += 1
    yield place


def _is_operand(arguments: Sequence[Word], place: int) -> bool:
    return place < len(arguments) and not arguments[place].text.startswith("-")


def _leads(wanted: tuple[str, ...], words: Sequence[Word]) -> Match:
    result = Match.YES
    for expected, word in zip(wanted, words, strict=False):
        if word.known and word.text != expected:
            return Match.NO
        if not word.known:
            result = Match.MAYBE
            if word.many:
                return result
    return result if len(words) >= len(wanted) else Match.NO


# --- flags ----------------------------------------------------------------------------------------


def _match_flags(rule: Rule, arguments: Sequence[Word]) -> Match:
    found = Match.YES if rule.allows else Match.NO
    for word in arguments:
        if word.text == "--":
            break
        if word.many or word.text.startswith(UNKNOWN):
            match = Match.MAYBE
        elif word.text.startswith("-") and word.text != "-":
            match = _is_covered(word.text, rule.flags) if rule.allows else _is_found(word.text, rule.flags)
        else:
            continue
        found = min(found, match) if rule.allows else max(found, match)
    return found


def _is_found(text: str, flags: Iterable[str]) -> Match:
    if any(_is_flag(text, flag) for flag in flags):
        return Match.YES
    return Match.MAYBE if UNKNOWN in text.partition("=")[0] else Match.NO


def _is_flag(text: str, flag: str) -> bool:
    option = text.partition("=")[0]
    if flag.startswith("--"):
        # Most programs accept the beginning of a long option.
        return option == flag or (len(option) > 2 and option.startswith("--") and flag.startswith(option))
    if len(flag) == 2:
        return not option.startswith("--") and flag[1] in option[1:]
    return option == flag


def _is_covered(text: str, flags: Iterable[str]) -> Match:
    """Whether the word has no option but those of a rule that allows."""
    option = text.partition("=")[0]
    if UNKNOWN in option:
        return Match.MAYBE
    if option in flags:
        return Match.YES
    letters = {flag[1] for flag in flags if len(flag) == 2}
    return Match.YES if not option.startswith("--") and set(option[1:]) <= letters else Match.NO


# --- arguments ------------------------------------------------------------------------------------


def _match_arguments(rule: Rule, command: Command) -> Match:
    matches = [
        _of_all_folders(rule.arguments, word, command.folders, rule.allows, text)
        for word in command.arguments
        for text in _values(word, rule.allows)
    ]
    if rule.allows:
        return min(matches, default=Match.YES)
    matches += (_any(rule.arguments, word.text) for word in command.inputs)
    return max(matches, default=Match.NO)


def _values(word: Word, allows: bool) -> Iterator[str]:
    """What a rule's patterns are compared with: the word, and the value in ``--option=value``."""
    text = word.text
    if word.many and text != UNKNOWN:
        yield UNKNOWN  # the words that may follow it
    if not text.startswith("-") or text == "-":
        yield text
        return
    if not allows:
        yield text
    name, equals, value = text.partition("=")
    if equals:
        yield value
    elif "/" in name:
        yield name[name.index("/") :]

"""Command policies as values, and how a document such as a YAML file becomes one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.policy.patterns import MAX_PATTERN_CHARACTERS, Pattern
from sandlot.domain.text.suggestions import did_you_mean

MAX_RULES: Final = 500
MAX_KNOWN_PROGRAMS: Final = 1000
# A program given with a path is its namesake in these folders. Elsewhere it may be anything, so a rule
# that allows the name does not allow it.
SYSTEM_FOLDERS: Final = ("/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin")
MAX_PATTERNS: Final = 200  # of one condition
MAX_TEXT_CHARACTERS: Final = 500


class Ruling(StrEnum):
    """What a policy says about a command.

    allow: it may run.
    ask: it may run once a person has approved it.
    deny: it may not run.
    """

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"

    @property
    def strictness(self) -> int:
        return _STRICTNESS[self]


_STRICTNESS: Final = {Ruling.ALLOW: 0, Ruling.ASK: 1, Ruling.DENY: 2}

_SUBJECTS: Final = ("program", "writes", "assigns")
_PROGRAM_CONDITIONS: Final = ("subcommand", "flags", "arguments", "input_from")
_RULE_FIELDS: Final = (
    "name", "ruling", "reason", "instead", *_SUBJECTS, *_PROGRAM_CONDITIONS, "ignore_case",
)  # fmt: skip
_POLICY_FIELDS: Final = ("name", "description", "otherwise", "not_understood", "rules")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: what it is about, and what to say about it.

    It is about a ``program``, about files that redirections write (``writes``) or about variables that get
    a value (``assigns``). Each of these lists patterns. A rule about programs may add conditions, and all
    of them must hold:

    subcommand: the first arguments that are no options, such as ``push`` or ``remote add``.
    flags: options. ``-r`` is also found in ``-rf``, and ``--recursive`` in ``--rec`` and ``--recursive=x``.
    arguments: patterns for arguments, for the values of options, and for here-documents.
    input_from: programs whose output the program gets, by pipe or substitution.

    A rule that asks or denies applies if any argument, flag or file matches. A rule that allows applies only
    if all of them do.

    reason: why, as the end of the sentence "The command …".
    instead: what to do instead.
    """

    name: str
    ruling: Ruling
    reason: str
    program: tuple[Pattern, ...] = ()
    writes: tuple[Pattern, ...] = ()
    assigns: tuple[Pattern, ...] = ()
    subcommand: tuple[tuple[str, ...], ...] = ()
    flags: tuple[str, ...] = ()
    arguments: tuple[Pattern, ...] = ()
    input_from: tuple[Pattern, ...] = ()
    instead: str = ""

    @property
    def allows(self) -> bool:
        return self.ruling is Ruling.ALLOW

    def is_about(self, program: str) -> bool:
        """Whether the rule is about this program, which is given by its name or with a path."""
        folder, slash, name = program.rpartition("/")
        elsewhere = bool(slash) and self.allows and folder not in SYSTEM_FOLDERS
        return any(
            bool(pattern.match(program))
            if "/" in pattern.source
            else not elsewhere and bool(pattern.match(name))
            for pattern in self.program
        )


@dataclass(frozen=True, slots=True)
class CommandPolicy:
    """Rules for commands. The first rule that applies to a command decides about it.

    otherwise: the ruling for a command that no rule applies to.
    not_understood: the ruling for text whose effect is not clear before it runs: ``ask`` or ``deny``.
    """

    name: str
    rules: tuple[Rule, ...] = ()
    otherwise: Ruling = Ruling.ALLOW
    not_understood: Ruling = Ruling.ASK
    description: str = ""
    # The rules about files and about variables; those about a program are looked up by ``rules_for``.
    write_rules: tuple[Rule, ...] = field(init=False, repr=False, compare=False)
    assign_rules: tuple[Rule, ...] = field(init=False, repr=False, compare=False)
    _known: dict[str, tuple[Rule, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.not_understood is Ruling.ALLOW:
            raise InvalidRequest(
                f"Policy {self.name}: not_understood must be ask or deny. A policy that allows what it does "
                "not understand allows everything."
            )
        object.__setattr__(self, "write_rules", tuple(rule for rule in self.rules if rule.writes))
        object.__setattr__(self, "assign_rules", tuple(rule for rule in self.rules if rule.assigns))

    def rules_for(self, program: str) -> tuple[Rule, ...]:
        """The rules about this program. Most commands use a few programs, so the answers are kept."""
        known = self._known.get(program)
        if known is None:
            if len(self._known) >= MAX_KNOWN_PROGRAMS:
                self._known.clear()
            known = tuple(rule for rule in self.rules if rule.is_about(program))
            self._known[program] = known
        return known

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> CommandPolicy:
        """The policy that a document describes. An unknown field or value is an ``InvalidRequest``."""
        name = _text(document, "name", "The policy")
        where = f"Policy {name}"
        _check_fields(document, _POLICY_FIELDS, where)
        rules = document.get("rules", ())
        if not isinstance(rules, Sequence) or isinstance(rules, str) or len(rules) > MAX_RULES:
            raise InvalidRequest(f"{where}: rules must be a list of at most {MAX_RULES} rules.")
        parsed = tuple(_rule(rule, f"{where}, rule {number}") for number, rule in enumerate(rules, 1))
        names = [rule.name for rule in parsed]
        for rule_name in names:
            if names.count(rule_name) > 1:
                raise InvalidRequest(f"{where}: two rules are named {rule_name}. Rename one of them.")
        return cls(
            name=name,
            description=_text(document, "description", where, ""),
            rules=parsed,
            otherwise=_ruling(document, "otherwise", where, Ruling.ALLOW),
            not_understood=_ruling(document, "not_understood", where, Ruling.ASK),
        )


# --- documents ------------------------------------------------------------------------------------


def _rule(document: Any, where: str) -> Rule:
    if not isinstance(document, Mapping):
        raise InvalidRequest(f"{where}: a rule is a mapping with a name, a ruling and what it is about.")
    name = _text(document, "name", where)
    where = f"{where} ({name})"
    _check_fields(document, _RULE_FIELDS, where)
    subjects = [subject for subject in _SUBJECTS if subject in document]
    if len(subjects) != 1:
        raise InvalidRequest(f"{where}: give exactly one of {', '.join(_SUBJECTS)}.")
    ruling = _ruling(document, "ruling", where)
    conditions = [condition for condition in _PROGRAM_CONDITIONS if condition in document]
    if conditions and subjects != ["program"]:
        raise InvalidRequest(f"{where}: {conditions[0]} needs program; redirections are judged on their own.")
    if ruling is Ruling.ALLOW and "input_from" in document:
        raise InvalidRequest(f"{where}: input_from is for rules that ask or deny.")
    ignore_case = document.get("ignore_case", False)
    if not isinstance(ignore_case, bool):
        raise InvalidRequest(f"{where}: ignore_case must be true or false.")

    def patterns(key: str, *, fold: bool = False) -> tuple[Pattern, ...]:
        return tuple(Pattern(text, ignore_case=fold) for text in _texts(document, key, where))

    flags = _texts(document, "flags", where)
    if wrong := next((flag for flag in flags if not flag.startswith("-") or flag in ("-", "--")), None):
        raise InvalidRequest(f"{where}: {wrong!r} is not a flag. A flag starts with - or --.")
    return Rule(
        name=name,
        ruling=ruling,
        reason=_text(document, "reason", where, f"is covered by the rule {name}"),
        instead=_text(document, "instead", where, ""),
        program=patterns("program"),
        writes=patterns("writes"),
        assigns=patterns("assigns"),
        subcommand=tuple(tuple(text.split()) for text in _texts(document, "subcommand", where)),
        flags=flags,
        arguments=patterns("arguments", fold=ignore_case),
        input_from=patterns("input_from"),
    )


def _check_fields(document: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in document:
        if key not in known:
            hint = did_you_mean(str(key)[:80], known)
            raise InvalidRequest(f"{where}: unknown field {key!r:.80}.{hint} Fields are: {', '.join(known)}.")


def _text(document: Mapping[str, Any], key: str, where: str, default: str | None = None) -> str:
    if key not in document and default is not None:
        return default
    value = document.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT_CHARACTERS:
        raise InvalidRequest(f"{where}: {key} must be text of 1-{MAX_TEXT_CHARACTERS} characters.")
    return value


def _texts(document: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    """A text, or a list of texts; empty if the document does not have the key."""
    if key not in document:
        return ()
    value = document[key]
    texts = [value] if isinstance(value, str) else value
    if (
        not isinstance(texts, Sequence)
        or not 0 < len(texts) <= MAX_PATTERNS
        or not all(isinstance(text, str) and 0 < len(text) <= MAX_PATTERN_CHARACTERS for text in texts)
    ):
        raise InvalidRequest(
            f"{where}: {key} must be a text or a list of 1-{MAX_PATTERNS} texts, each of "
            f"1-{MAX_PATTERN_CHARACTERS} characters. Put numbers and true/false in quotes."
        )
    return tuple(texts)


def _ruling(document: Mapping[str, Any], key: str, where: str, default: Ruling | None = None) -> Ruling:
    if key not in document and default is not None:
        return default
    value, known = document.get(key), [ruling.value for ruling in Ruling]
    if value not in known:
        hint = did_you_mean(value[:80], known) if isinstance(value, str) else ""
        raise InvalidRequest(f"{where}: {key} must be allow, ask or deny, not {value!r:.80}.{hint}")
    return Ruling(value)

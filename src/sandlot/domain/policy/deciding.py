"""Decides about a command line: the strictest ruling over everything that it does."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from sandlot.domain.policy.commands import Assignment, Command, Reading, Step, Unclear, Write
from sandlot.domain.policy.matching import match_rule
from sandlot.domain.policy.patterns import Match
from sandlot.domain.policy.policy import CommandPolicy, Rule, Ruling

# The names of the two rules that every policy has.
NOT_UNDERSTOOD: Final = "not_understood"
OTHERWISE: Final = "otherwise"

MAX_FINDINGS: Final = 10
MAX_SHOWN_WORDS: Final = 20
MAX_SHOWN_CHARACTERS: Final = 200  # of one word
MAX_SHOWN_ALLOWED: Final = 12  # programs that the answer lists


@dataclass(frozen=True, slots=True)
class Finding:
    """Why a part of a command line is not simply allowed.

    ruling: ask or deny.
    rule: the rule's name; ``otherwise`` if none applied, ``not_understood`` if that is not clear.
    words: the part.
    reason: why, as the end of the sentence "The command …".
    allowed: what would be allowed instead.
    """

    ruling: Ruling
    rule: str
    words: tuple[str, ...]
    reason: str
    allowed: str

    def to_details(self) -> dict[str, Any]:
        return {"rule": self.rule, "words": list(self.words), "reason": self.reason, "allowed": self.allowed}


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy says about a command line.

    ruling: the strictest ruling over everything that the command line does.
    findings: why, strictest first, then in the order of the text; empty if everything is allowed.
    """

    ruling: Ruling
    findings: tuple[Finding, ...] = ()

    @property
    def reason(self) -> str:
        return "; ".join(dict.fromkeys(finding.reason for finding in self.findings))

    def to_json(self) -> bytes:
        findings = [{"ruling": finding.ruling, **finding.to_details()} for finding in self.findings]
        return json.dumps({"ruling": self.ruling, "findings": findings}).encode()

    @classmethod
    def of_json(cls, content: bytes) -> Decision:
        document = json.loads(content)
        findings = (
            Finding(
                Ruling(each["ruling"]), each["rule"], tuple(each["words"]), each["reason"], each["allowed"]
            )
            for each in document["findings"]
        )
        return cls(Ruling(document["ruling"]), tuple(findings))


def decide(policy: CommandPolicy, reading: Reading) -> Decision:
    findings = [_about_unclear(policy, unclear) for unclear in reading.unclear]
    findings += [finding for step in reading.steps if (finding := _about(policy, step)) is not None]
    # The rule that covers the most of a command comes before the doubts about the rest of it.
    findings.sort(key=lambda finding: (-finding.ruling.strictness, finding.rule == NOT_UNDERSTOOD))
    if not findings:
        return Decision(Ruling.ALLOW)
    return Decision(findings[0].ruling, tuple(findings[:MAX_FINDINGS]))


def _about_unclear(policy: CommandPolicy, unclear: Unclear) -> Finding:
    return Finding(
        policy.not_understood,
        NOT_UNDERSTOOD,
        _shown(unclear.words),
        f"is not clear before it runs: it {unclear.why}",
        "The same command in plain words, without what is unclear.",
    )


def _about(policy: CommandPolicy, step: Step) -> Finding | None:
    """The first rule that applies decides. Rules that may apply leave a doubt if they say otherwise."""
    doubts: list[Rule] = []
    for rule in _candidates(policy, step):
        match = match_rule(rule, step)
        if match is Match.YES:
            return _settle(policy, step, doubts, rule.ruling, rule)
        if match is Match.MAYBE:
            doubts.append(rule)
    otherwise = Ruling.ALLOW if isinstance(step, Assignment) else policy.otherwise
    return _settle(policy, step, doubts, otherwise, None)


def _candidates(policy: CommandPolicy, step: Step) -> tuple[Rule, ...]:
    if isinstance(step, Command):
        return policy.rules_for(step.program)
    return policy.write_rules if isinstance(step, Write) else policy.assign_rules


def _settle(
    policy: CommandPolicy, step: Step, doubts: list[Rule], ruling: Ruling, rule: Rule | None
) -> Finding | None:
    doubt = next((doubt for doubt in doubts if doubt.ruling is not ruling), None)
    if doubt is not None:
        # At most as strict as the strictest rule that may apply.
        possible = max((ruling, *(each.ruling for each in doubts)), key=_strictness)
        return Finding(
            min(policy.not_understood, possible, key=_strictness),
            NOT_UNDERSTOOD,
            _shown(step.words),
            f"may be one that the rule {doubt.name} covers ({doubt.reason})",
            "The same command with plain words in place of variables and substitutions.",
        )
    if ruling is Ruling.ALLOW:
        return None
    if rule is None:
        reason = "writes to a file that no rule allows" if isinstance(step, Write) else _unlisted(step)
        return Finding(ruling, OTHERWISE, _shown(step.words), reason, _allowed_programs(policy, step))
    allowed = rule.instead or _beside(policy, rule)
    return Finding(ruling, rule.name, _shown(step.words), rule.reason, allowed)


def _strictness(ruling: Ruling) -> int:
    return ruling.strictness


def _unlisted(step: Step) -> str:
    return f"runs {_shorten(step.words[0])}, which no rule allows"


def _shown(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_shorten(word) for word in words[:MAX_SHOWN_WORDS])


def _shorten(word: str) -> str:
    return word if len(word) <= MAX_SHOWN_CHARACTERS else word[: MAX_SHOWN_CHARACTERS - 1] + "…"


# --- what would be allowed ------------------------------------------------------------------------


def _beside(policy: CommandPolicy, rule: Rule) -> str:
    """What is outside the rule, in words. A later rule may still have something to say about it."""
    if policy.otherwise is not Ruling.ALLOW:
        return _allowed_programs(policy, None)
    if rule.writes:
        return f"Writing to files other than {_listed(rule.writes)}."
    if rule.assigns:
        return "The same command without setting the variable."
    programs = _listed(rule.program)
    if rule.flags:
        return f"{programs} without {', '.join(rule.flags)}."
    if rule.arguments:
        return f"{programs} with arguments other than {_listed(rule.arguments)}."
    if rule.input_from:
        return f"{programs} without input from {_listed(rule.input_from)}."
    if rule.subcommand:
        return f"{programs} with another subcommand than {', '.join(map(' '.join, rule.subcommand))}."
    return f"Programs other than {programs}."


def _listed(patterns: tuple[Any, ...]) -> str:
    shown = ", ".join(pattern.source for pattern in patterns[:MAX_SHOWN_ALLOWED])
    return shown + (", …" if len(patterns) > MAX_SHOWN_ALLOWED else "")


def _allowed_programs(policy: CommandPolicy, step: Step | None) -> str:
    if isinstance(step, Write):
        files = [pattern.source for rule in policy.rules if rule.allows for pattern in rule.writes]
        return (
            f"Writing to {', '.join(files[:MAX_SHOWN_ALLOWED])}." if files else "Commands without > and >>."
        )
    forms = list(
        dict.fromkeys(
            " ".join((pattern.source, *words))
            for rule in policy.rules
            if rule.allows
            for pattern in rule.program
            for words in (rule.subcommand or ((),))
        )
    )
    if not forms:
        return "Nothing without approval." if policy.otherwise is Ruling.ASK else "Nothing."
    return f"{', '.join(forms[:MAX_SHOWN_ALLOWED])}{', …' if len(forms) > MAX_SHOWN_ALLOWED else ''}."

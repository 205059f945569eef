"""Policies as documents, patterns against words that are known in part, and what an answer says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.bash.reading import read_text
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.policy.commands import UNKNOWN, WILDCARD
from sandlot.domain.policy.deciding import Decision, decide
from sandlot.domain.policy.patterns import Match, Pattern
from sandlot.domain.policy.policy import CommandPolicy, Ruling


def policy_of(*rules: dict[str, Any], **fields: Any) -> CommandPolicy:
    return CommandPolicy.of({"name": "test", "rules": list(rules), **fields})


def ruled(command: str, *rules: dict[str, Any], **fields: Any) -> Decision:
    return decide(policy_of(*rules, **fields), read_text(command))


RM = {"name": "no-rm", "ruling": "deny", "program": "rm"}

WRONG = [
    ({"rule": []}, "Did you mean 'rules'?"),
    ({"otherwise": "alow"}, "Did you mean 'allow'?"),
    ({"not_understood": "allow"}, "allows everything"),
    ({"rules": "rm"}, "must be a list"),
    ({"rules": ["rm"]}, "a rule is a mapping"),
    ({"rules": [{**RM, "flag": "-r"}]}, "Did you mean 'flags'?"),
    ({"rules": [{**RM, "ruling": "forbid"}]}, "must be allow, ask or deny"),
    ({"rules": [{**RM, "writes": "x"}]}, "exactly one of program, writes, assigns"),
    ({"rules": [{"name": "x", "ruling": "deny"}]}, "exactly one of program, writes, assigns"),
    ({"rules": [{"name": "x", "ruling": "deny", "writes": "y", "flags": "-r"}]}, "flags needs program"),
    ({"rules": [{**RM, "flags": ["r"]}]}, "is not a flag"),
    ({"rules": [{**RM, "arguments": [1]}]}, "Put numbers"),
    ({"rules": [{**RM, "arguments": []}]}, "a list of 1-"),
    ({"rules": [{**RM, "ignore_case": "yes"}]}, "true or false"),
    ({"rules": [RM, RM]}, "two rules are named no-rm"),
    ({"rules": [{**RM, "ruling": "allow", "input_from": "curl"}]}, "for rules that ask or deny"),
    ({"name": ""}, "name must be text"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG)
def test_an_error_says_what_is_wrong_and_what_was_meant(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=r".+") as raised:
        CommandPolicy.of({"name": "test", **fields})
    assert message in raised.value.message


def test_the_first_rule_that_applies_decides() -> None:
    spared = {
        "name": "build", "ruling": "allow", "program": "rm", "flags": ["-r", "-f"], "arguments": ["build"],
    }  # fmt: skip
    assert ruled("rm -rf build", spared, RM).ruling is Ruling.ALLOW
    assert ruled("rm -rf build src", spared, RM).ruling is Ruling.DENY
    assert ruled("rm -rfv build", spared, RM).ruling is Ruling.DENY
    assert ruled("rm -rf build", RM, spared).ruling is Ruling.DENY


def test_a_doubt_counts_only_if_it_would_change_the_ruling() -> None:
    asked = {"name": "recursive", "ruling": "ask", "program": "rm", "flags": "-r"}
    assert ruled('rm "$x"', asked).ruling is Ruling.ASK
    assert ruled('rm "$x"', asked, RM).findings[0].rule == "not_understood"
    assert ruled('rm "$x"', {**asked, "ruling": "deny"}, RM).findings[0].rule == "no-rm"
    # It is at most as strict as the strictest rule in question ...
    assert ruled('rm "$x"', asked, not_understood="deny").ruling is Ruling.ASK
    # ... but a program that nobody knows may be any.
    assert ruled("$x", asked, not_understood="deny").ruling is Ruling.DENY


def test_an_answer_names_the_rule_the_words_and_what_would_be_allowed() -> None:
    flags = {**RM, "flags": ["-r", "--recursive"], "reason": "deletes folders"}
    (finding,) = ruled("ls && rm -rf x y", flags).findings
    assert (finding.rule, finding.words) == ("no-rm", ("rm", "-rf", "x", "y"))
    assert (finding.reason, finding.allowed) == ("deletes folders", "rm without -r, --recursive.")
    (finding,) = ruled("rm x", {**RM, "instead": "Use trash."}).findings
    assert finding.allowed == "Use trash."
    (finding,) = ruled("rm /etc/x", {**RM, "arguments": "/etc/**"}).findings
    assert finding.allowed == "rm with arguments other than /etc/**."
    allowed = {"name": "git", "ruling": "allow", "program": "git", "subcommand": ["log", "diff"]}
    (finding,) = ruled("git push", allowed, otherwise="deny").findings
    assert (finding.rule, finding.allowed) == ("otherwise", "git log, git diff.")


def test_a_decision_survives_its_way_between_processes() -> None:
    decision = ruled("rm x; $y; echo z > /etc/a", RM)
    assert decision.findings
    assert Decision.of_json(decision.to_json()) == decision


@pytest.mark.parametrize(
    ("pattern", "text", "match"),
    [
        ("/etc/**", "/etc/a/b", Match.YES),
        ("/etc/*", "/etc/a/b", Match.NO),
        ("/etc/*", "/etc/../etc/./a", Match.YES),
        ("/etc/**", "etc/a", Match.NO),
        ("/etc/**", f"/{UNKNOWN}", Match.MAYBE),
        ("/etc/**", f"/usr/{UNKNOWN}", Match.NO),
        ("/etc/**", f"/usr/{UNKNOWN}/../x", Match.MAYBE),
        ("/etc/**", f"/e{WILDCARD}/x", Match.MAYBE),
        ("/etc/**", f"/{WILDCARD}", Match.NO),
        ("/etc/**", f"/etc/{WILDCARD}", Match.YES),
        ("/etc/**", "../x", Match.MAYBE),
        ("of=/dev/*", "of=//dev/sda", Match.YES),
        ("of=/dev/*", "if=/dev/sda", Match.NO),
        ("of=/dev/*", f"{UNKNOWN}", Match.MAYBE),
        ("of=/dev/*", f"of={UNKNOWN}", Match.MAYBE),
        ("a?c", "abc", Match.YES),
        ("a?c", f"a{UNKNOWN}", Match.MAYBE),
        ("~", UNKNOWN, Match.NO),
        ("**", UNKNOWN, Match.YES),
    ],
)
def test_patterns(pattern: str, text: str, match: Match) -> None:
    assert Pattern(pattern).match(text) is match


PIECES = st.sampled_from(["a", "b", "/", "."])
PATTERNS = st.lists(st.sampled_from(["a", "b", "/", ".", "*", "**", "?"]), min_size=1, max_size=6).map(
    "".join
)
TEXTS = st.lists(PIECES, max_size=6).map("".join)


@given(PATTERNS.filter(lambda text: not text.startswith("/")), TEXTS, TEXTS, TEXTS)
def test_an_unknown_part_never_hides_a_match(pattern: str, before: str, value: str, after: str) -> None:
    """If some value of the unknown part matches, the answer is not "no"."""
    compiled = Pattern(pattern)
    if compiled.match(before + value + after) is Match.YES:
        assert compiled.match(before + UNKNOWN + after) is not Match.NO
        if "/" not in value:
            assert compiled.match(before + WILDCARD + after) is not Match.NO


NAMES = st.lists(st.sampled_from(["a", "b", "/"]), max_size=6).map("".join)
VALUES = st.lists(st.sampled_from(["a", "b", "ab"]), min_size=1, max_size=3).map("/".join)


@given(NAMES, VALUES, NAMES, st.sampled_from(["/a/**", "/b/*", "/*", "/"]))
def test_an_unknown_part_of_a_path_never_hides_a_match(
    before: str, value: str, after: str, pattern: str
) -> None:
    """Except for ``..`` and nothing: an unknown part is taken to be something below what is before it."""
    compiled = Pattern(pattern)
    if compiled.match("/" + before + value + after) is Match.YES:
        assert compiled.match("/" + before + UNKNOWN + after) is not Match.NO

"""The bypass corpus: every line of corpus.txt gets the ruling that stands beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandlot.bash.reading import read_text
from sandlot.config.registry.policies import shipped_policy
from sandlot.domain.policy.deciding import decide
from sandlot.domain.policy.policy import CommandPolicy

READER = CommandPolicy.of(
    {
        "name": "reader",
        "otherwise": "deny",
        "not_understood": "deny",
        "rules": [
            {"name": "look", "ruling": "allow", "program": ["ls", "cat"]},
            {"name": "sort", "ruling": "allow", "program": "sort", "flags": ["-r", "-n", "-u"]},
            {"name": "head", "ruling": "allow", "program": "head", "arguments": ["/workspace/**", "5"]},
            {
                "name": "pager",
                "ruling": "deny",
                "program": "git",
                "arguments": "*.pager=**",
                "reason": "runs a pager",
            },
            {"name": "git", "ruling": "allow", "program": "git", "subcommand": ["status", "log"]},
            {"name": "output", "ruling": "allow", "writes": "/workspace/out/**"},
        ],
    }
)
POLICIES = {
    "validation": shipped_policy("validation"),
    "approval": shipped_policy("approval"),
    "reader": READER,
}


def corpus() -> list[tuple[str, str, str, str]]:
    lines, policy = [], ""
    for line in (Path(__file__).parent / "corpus.txt").read_text("utf-8").splitlines():
        if line.startswith("["):
            policy = line.strip("[]")
        elif line and not line.startswith("#"):
            ruling, rule, command = line.split(maxsplit=2)
            lines.append((policy, ruling, rule, command.replace("⏎", "\n").replace("⇥", "\t")))
    return lines


@pytest.mark.parametrize(("policy", "ruling", "rule", "command"), corpus())
def test_every_line_gets_its_ruling(policy: str, ruling: str, rule: str, command: str) -> None:
    decision = decide(POLICIES[policy], read_text(command))
    found = decision.findings[0].rule if decision.findings else "-"
    assert (decision.ruling, found) == (ruling, rule), decision


def test_the_corpus_is_large_and_has_no_line_twice() -> None:
    lines = [(policy, command) for policy, _, _, command in corpus()]
    assert len(lines) >= 200
    assert len(set(lines)) == len(lines)

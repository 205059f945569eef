"""The error for a command that a policy does not let run."""

from __future__ import annotations

from collections.abc import Sequence

from sandlot.domain.errors import ApprovalRequired, PolicyDenied
from sandlot.domain.policy.deciding import Decision
from sandlot.domain.policy.policy import CommandPolicy, Ruling


def check_decisions(decided: Sequence[tuple[CommandPolicy, Decision]], *, approved: bool) -> None:
    """Raise ``PolicyDenied`` or ``ApprovalRequired`` unless all of these policies let the command run.

    The strictest decision counts. The error names its policy, and among equals the first one.
    """
    strictest_first = sorted(decided, key=lambda each: -each[1].ruling.strictness)
    if not strictest_first:
        return
    policy, decision = strictest_first[0]
    if decision.ruling is Ruling.ALLOW or (decision.ruling is Ruling.ASK and approved):
        return
    finding = decision.findings[0]
    found = [(by.name, each) for by, other in strictest_first for each in other.findings]
    found.sort(key=lambda named: -named[1].ruling.strictness)
    details = {
        "policy": policy.name,
        **finding.to_details(),
        "findings": [{"policy": name, **each.to_details()} for name, each in found],
    }
    about = f"The command {finding.reason} (policy {policy.name}, rule {finding.rule}). It did not run."
    if decision.ruling is Ruling.DENY:
        raise PolicyDenied(f"{about} Allowed: {finding.allowed}", details=details)
    raise ApprovalRequired(
        f"{about} Ask a person. If they agree, send the same command with approved=true.", details=details
    )

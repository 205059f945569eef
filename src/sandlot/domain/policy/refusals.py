"""The error for a command that a policy does not let run."""

from __future__ import annotations

from sandlot.domain.errors import ApprovalRequired, PolicyDenied
from sandlot.domain.policy.deciding import Decision
from sandlot.domain.policy.policy import CommandPolicy, Ruling


def check_decision(decision: Decision, policy: CommandPolicy, *, approved: bool) -> None:
    """Raise ``PolicyDenied`` or ``ApprovalRequired`` unless the command may run."""
    if decision.ruling is Ruling.ALLOW or (decision.ruling is Ruling.ASK and approved):
        return
    finding = decision.findings[0]
    details = {
        "policy": policy.name,
        **finding.to_details(),
        "findings": [each.to_details() for each in decision.findings],
    }
    about = f"The command {finding.reason} (policy {policy.name}, rule {finding.rule}). It did not run."
    if decision.ruling is Ruling.DENY:
        raise PolicyDenied(f"{about} Allowed: {finding.allowed}", details=details)
    raise ApprovalRequired(
        f"{about} Ask a person. If they agree, send the same command with approved=true.", details=details
    )

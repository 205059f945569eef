"""What an environment may not ask of E2B. It is refused, because E2B would ignore it. Pure."""

from __future__ import annotations

from dataclasses import asdict

from sandlot.domain.capacity.limits import Limits
from sandlot.domain.environment import Environment, ProviderName
from sandlot.domain.errors import Unsupported


def check_environment(environment: Environment) -> None:
    name = environment.name
    if environment.provider is not ProviderName.E2B:
        raise Unsupported(f"Environment {name} belongs to the provider {environment.provider}, not to e2b.")
    check_limits(environment.limits)


def check_limits(limits: Limits) -> None:
    """The defaults stand for those of the template."""
    asked = {key for key, value in asdict(Limits()).items() if getattr(limits, key) != value}
    if asked:
        raise Unsupported(
            f"E2B cannot set the limits {', '.join(sorted(asked))}: the template fixes what its sandboxes "
            "may use. Choose another template, or an environment of the provider docker."
        )

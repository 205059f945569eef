"""Resolves the environment names that the first interfaces used.

Those few names mean the default environment. Any other name is a current environment or an error:
``gVisor``, ``runsc`` or a typo may have been a request for stronger isolation than the default's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sandlot.domain.environment import Tier, unknown_environment_error

FORMER_NAMES: Final = frozenset(
    {"python", "python3", "python:latest", "node", "nodejs", "node:latest", "default"}
)


def resolve_environment(name: str | None, known: Mapping[str, Tier]) -> str | None:
    """The current name; None means the default. ``known``: the server's environments, by name."""
    if name is None or name in known:
        return name
    if name.lower() in FORMER_NAMES:
        return None
    raise unknown_environment_error(name, known)

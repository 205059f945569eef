"""Environments by the names that the first interfaces had for them.

Those few mean the default environment. Any other name is one of ours, or an error: ``gVisor``, ``runsc`` or a
typo may have been meant to ask for a stronger wall than the default one has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sandlot.domain.environment import Tier, no_environment

FORMER_NAMES: Final = frozenset(
    {"python", "python3", "python:latest", "node", "nodejs", "node:latest", "default"}
)


def environment_meant(name: str | None, known: Mapping[str, Tier]) -> str | None:
    """None: the default one. ``known``: the server's environments, by name."""
    if name is None or name in known:
        return name
    if name.lower() in FORMER_NAMES:
        return None
    raise no_environment(name, known)

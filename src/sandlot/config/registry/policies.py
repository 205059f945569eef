"""The command policies that ship with Sandlot, as YAML in ``registry/policies/``.

The registry reads these files too. This module reads one of them without the server's libraries, for
programs that only ask about commands.
"""

from __future__ import annotations

from functools import cache

from sandlot.config.packaged import packaged_folder
from sandlot.config.registry.yaml_files import read_yaml
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.policy.policy import CommandPolicy
from sandlot.domain.text.suggestions import did_you_mean


@cache
def shipped_policy(name: str) -> CommandPolicy:
    folder = packaged_folder("registry") / "policies"
    known = {file.stem: file for file in sorted(folder.glob("*.yaml"))}
    if name not in known:
        raise InvalidRequest(
            f"Unknown policy {name!r:.80}.{did_you_mean(name[:80], known)} Shipped are: {', '.join(known)}."
        )
    return CommandPolicy.of(read_yaml(known[name]))

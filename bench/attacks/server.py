"""A server some of whose environments have a hostile program in the agent's place: `python -m bench.attacks.server serve`.

The program of the environment X is ``hostile/X`` in the folder of the registry. It is mounted where the
agent's would be; everything else about the sandbox, its walls and its link, is the product's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sandlot.cli.serve import run
from sandlot.config.settings import server_settings
from sandlot.providers.base import SandboxSpec
from sandlot.providers.docker import provider
from sandlot.providers.docker.spec import HostPaths, container_spec
from sandlot.wiring import serve

PROGRAMS = "hostile"


def with_hostile_agents(
    usual: Callable[..., dict[str, Any]], programs: Path
) -> Callable[..., dict[str, Any]]:
    def specified(spec: SandboxSpec, *, paths: HostPaths, **options: Any) -> dict[str, Any]:
        program = programs / spec.environment.name
        return usual(spec, paths=replace(paths, agent=str(program)) if program.exists() else paths, **options)

    return specified


def main() -> None:
    programs = Path(os.environ["SANDLOT_REGISTRY_DIR"]) / PROGRAMS
    provider.container_spec = with_hostile_agents(container_spec, programs)  # type: ignore[attr-defined]
    run(serve(server_settings()))


if __name__ == "__main__":
    main()

"""A server with hostile programs in place of agents: `python -m bench.attacks.server serve`.

The program of environment X is ``hostile/X`` in the registry's folder. It is mounted in place of
the agent. Everything else about the sandbox, its isolation and its link, is unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sandlot.cli.serve import run
from sandlot.config.reading import server_settings
from sandlot.providers.base import SandboxSpec
from sandlot.providers.docker import provider
from sandlot.providers.docker.spec import HostPaths, container_spec
from sandlot.wiring import serve

PROGRAMS = "hostile"


def with_hostile_agents(
    build_spec: Callable[..., dict[str, Any]], programs: Path
) -> Callable[..., dict[str, Any]]:
    def build_hostile_spec(spec: SandboxSpec, *, paths: HostPaths, **options: Any) -> dict[str, Any]:
        program = programs / spec.environment.name
        return build_spec(
            spec, paths=replace(paths, agent=str(program)) if program.exists() else paths, **options
        )

    return build_hostile_spec


def main() -> None:
    programs = Path(os.environ["SANDLOT_REGISTRY_DIR"]) / PROGRAMS
    provider.container_spec = with_hostile_agents(container_spec, programs)  # type: ignore[attr-defined]
    run(serve(server_settings()))


if __name__ == "__main__":
    main()

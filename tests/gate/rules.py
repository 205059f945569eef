"""What every gate runs, and which suites prove a part of the code beyond that."""

from __future__ import annotations

from collections.abc import Iterable

from tests.gate.groups import within

CONFORMANCE = "tests/service/test_service_conformance.py"
FLEET_CONFORMANCE = "tests/service/test_fleet_conformance.py"
PROVIDER = "tests/docker/test_conformance.py"

# Units, the shipped fake, a real worker over HTTP, the runc tier in full with its walls.
ALWAYS = (
    "tests/unit",
    f"{CONFORMANCE}::TestFake",
    f"{CONFORMANCE}::TestWorkerOverHttp",
    f"{PROVIDER}::TestRunc",
    "tests/docker/test_walls.py",
    "tests/docker/test_golden.py",
    "tests/docs/test_faults_page.py",
    "tests/attacks/test_catalogue.py",
)

FLEET = (
    "tests/fleet",
    FLEET_CONFORMANCE,
    "tests/fleet_faults",
    "tests/chaos",
    "tests/attacks/test_fleet.py",
    "tests/upgrade",
)
WORKSPACES = "tests/workspaces"
INTEGRATIONS = ("tests/integrations", "tests/docs/test_agent_pages.py")

# Changing these proves nothing and breaks nothing that a suite of its own would show.
WITHOUT_SUITES = (
    ".dockerignore",
    ".editorconfig",
    ".gitignore",
    "LICENSE",
    # For every suite alike: none is more concerned than the others.
    "tests/__init__.py",
    "tests/conftest.py",
    "tests/durations.json",
    "tests/gate",
    "tests/leaks.py",
)

# Source → the suites that prove it. The longest matching path counts.
SUITES: dict[str, tuple[str, ...]] = {
    ".ci": ("tests/deploy",),
    ".github": ("tests/docs",),
    "ARCHITECTURE.md": ("tests/docs",),
    "CHANGELOG.md": ("tests/docs",),
    "CONTRIBUTING.md": ("tests/docs",),
    "Makefile": ("tests/deploy",),
    "PROMISES.md": ("tests/docs",),
    "README.md": ("tests/docs",),
    "SCOPE.md": ("tests/docs",),
    "SECURITY.md": ("tests/docs",),
    "agent": ("tests/attacks", "tests/docker", "tests/code", CONFORMANCE),
    "bench": (
        "tests/docker/test_figures.py",
        "tests/service/test_figures.py",
        "tests/console/test_figures.py",
        "tests/workspaces/test_figures.py",
        "tests/code/test_figures.py",
        "tests/observability/test_figures.py",
        "tests/chaos",
    ),
    "console": ("tests/console", "tests/unit/api/test_console.py"),
    "deploy": ("tests/deploy",),
    "deploy/prometheus": ("tests/observability", "tests/unit/metrics", "tests/deploy/test_watching.py"),
    "deploy/grafana": ("tests/unit/metrics", "tests/deploy/test_watching.py"),
    "docs": ("tests/docs", "tests/deploy/test_pages.py"),
    "docs/operations": ("tests/docs", "tests/faults/test_backup.py"),
    "examples": ("tests/docs",),
    "images": ("tests/docker", "tests/deploy", "tests/code"),
    "quickstart.sh": ("tests/docs", "tests/deploy"),
    "registry": ("tests/docker", CONFORMANCE),
    "requirements": (*INTEGRATIONS, "tests/test_package.py", "tests/fleet"),
    "scripts": ("tests/deploy",),
    "hatch_build.py": ("tests/test_package.py", "tests/console"),
    "pyproject.toml": ("tests/test_package.py",),
    "src/sandlot": ("tests/test_package.py", "tests/docs"),
    "src/sandlot/api": (
        CONFORMANCE,
        "tests/service",
        "tests/seed_examples",
        "tests/fleet",
        "tests/faults",
        "tests/attacks/test_api.py",
        "tests/attacks/test_tenants.py",
        "tests/attacks/test_fleet.py",
        "tests/e2b",
        "tests/console",
    ),
    "src/sandlot/api/console": ("tests/console",),
    "src/sandlot/api/e2b": ("tests/e2b", "tests/e2b_provider"),
    "src/sandlot/providers/e2b": ("tests/e2b_provider",),
    "src/sandlot/providers/side_by_side.py": ("tests/e2b_provider",),
    "agent/internal/relay": ("tests/e2b_provider",),
    "agent/internal/exec/procs": ("tests/attacks", "tests/docker", CONFORMANCE, "tests/e2b_provider"),
    "src/sandlot/domain/e2b": ("tests/e2b",),
    "src/sandlot/domain/templates": ("tests/e2b/test_builds.py",),
    "src/sandlot/worker/templates": ("tests/e2b/test_builds.py",),
    "src/sandlot/providers/docker/builds": ("tests/e2b/test_builds.py",),
    "src/sandlot/config/registry/built.py": ("tests/e2b/test_builds.py",),
    "requirements/e2b.txt": ("tests/e2b",),
    "requirements/otlp.txt": ("tests/observability/test_otlp.py",),
    "requirements/plots.txt": ("tests/code/test_plots.py", "tests/e2b/code/test_plots.py"),
    "requirements/e2b-old.txt": ("tests/e2b",),
    "requirements/e2b-js": ("tests/e2b",),
    "requirements/e2b-langchain.txt": ("tests/e2b",),
    "src/sandlot/domain/metrics": ("tests/observability",),
    "src/sandlot/wire/tracing": ("tests/observability", "tests/fleet"),
    "src/sandlot/wiring/telemetry": ("tests/observability",),
    "src/sandlot/bash": (CONFORMANCE, "tests/integrations/test_langchain_approval.py"),
    "src/sandlot/cli": ("tests/docs", "tests/fleet/test_cli.py", "tests/test_package.py"),
    "src/sandlot/cli/top": ("tests/docs", "tests/test_package.py", "tests/console/test_coordinator.py"),
    "src/sandlot/api/fleet": ("tests/fleet", FLEET_CONFORMANCE, "tests/console/test_coordinator.py"),
    "src/sandlot/client": (
        CONFORMANCE,
        "tests/fleet",
        FLEET_CONFORMANCE,
        "tests/seed_examples",
        "tests/faults",
        *INTEGRATIONS,
    ),
    "src/sandlot/config": ("tests/docs", "tests/deploy", "tests/test_package.py"),
    "src/sandlot/domain": (CONFORMANCE, PROVIDER, *FLEET, "tests/faults"),
    "src/sandlot/fleet": FLEET,
    "src/sandlot/integrations": INTEGRATIONS,
    "src/sandlot/integrations/deepagents": ("tests/integrations/test_deepagents_*",),
    "src/sandlot/integrations/inspect_ai.py": ("tests/integrations/test_inspect_ai.py",),
    "src/sandlot/integrations/langchain": (
        "tests/integrations/test_langchain_*",
        "tests/fleet_faults/test_time_travel.py",
        "tests/docs/test_agent_pages.py",
    ),
    "src/sandlot/integrations/mcp": ("tests/integrations/test_mcp_*",),
    "src/sandlot/integrations/openai_agents": ("tests/integrations/test_openai_agents.py",),
    "src/sandlot/integrations/pydantic_ai.py": ("tests/integrations/test_pydantic_ai.py",),
    "src/sandlot/integrations/pydantic_python.py": (
        "tests/unit/integrations",
        "tests/integrations/test_python_tool.py",
    ),
    "src/sandlot/providers": ("tests/attacks", "tests/docker", CONFORMANCE, WORKSPACES, "tests/faults"),
    "src/sandlot/reference": ("tests/docs",),
    "src/sandlot/testing": (CONFORMANCE, PROVIDER, "tests/fleet", FLEET_CONFORMANCE),
    "src/sandlot/wire": (CONFORMANCE, PROVIDER, "tests/fleet", FLEET_CONFORMANCE, *INTEGRATIONS),
    "src/sandlot/wiring": (
        CONFORMANCE,
        FLEET_CONFORMANCE,
        "tests/test_package.py",
        "tests/faults",
        "tests/attacks/test_api.py",
        "tests/attacks/test_fleet.py",
        "tests/attacks/test_worker.py",
        "tests/service/test_local_mode.py",
    ),
    "src/sandlot/worker": (
        CONFORMANCE,
        WORKSPACES,
        "tests/faults",
        FLEET_CONFORMANCE,
        "tests/attacks/test_worker.py",
        "tests/upgrade",
    ),
    "src/sandlot/worker/contexts": ("tests/code", "tests/e2b_provider", CONFORMANCE),
    "src/sandlot/domain/code": ("tests/code", CONFORMANCE, FLEET_CONFORMANCE),
    "src/sandlot/worker/workspaces": (CONFORMANCE, WORKSPACES, "tests/faults", FLEET_CONFORMANCE),
    "src/sandlot/worker/volumes": (CONFORMANCE, WORKSPACES, FLEET_CONFORMANCE),
    "src/sandlot/worker/artifacts": (CONFORMANCE, "tests/faults", FLEET_CONFORMANCE),
    "src/sandlot/domain/workspaces": (CONFORMANCE, WORKSPACES, "tests/fleet", FLEET_CONFORMANCE),
    "src/sandlot/providers/docker/workspaces": ("tests/docker", CONFORMANCE, WORKSPACES),
    "src/sandlot/providers/archives": ("tests/unit/archives", WORKSPACES),
    "src/sandlot/providers/trees": ("tests/unit/objects", "tests/unit/archives", WORKSPACES),
    "src/sandlot/worker/network": (CONFORMANCE, "tests/network", "tests/faults"),
    "src/sandlot/domain/network": (CONFORMANCE, "tests/network"),
    "tests/btrfs_storage.py": (
        WORKSPACES,
        CONFORMANCE,
        FLEET_CONFORMANCE,
        "tests/integrations/test_langchain_time_travel.py",
        "tests/e2b/test_workspaces.py",
    ),
    "tests/cutting_proxy.py": ("tests/fleet",),
    "tests/postgres_server.py": ("tests/integrations/test_langchain_time_travel.py",),
    "tests/s3_server.py": ("tests/unit/objects", "tests/workspaces/test_exports.py"),
    "tests/owned.py": ("tests/unit/worker", "tests/fleet"),
    "tests/docker/inside": ("tests/docker", "tests/attacks"),
    "tests/faults/rig.py": ("tests/faults", "tests/service/test_hostile_files.py"),
    "tests/fleet_faults/rig.py": ("tests/fleet_faults", FLEET_CONFORMANCE, "tests/attacks/test_fleet.py"),
    "tests/measuring.py": ("tests/docker/test_figures.py", "tests/service/test_figures.py", "tests/chaos"),
    "tests/golden": ("tests/docker/test_golden.py", "tests/unit"),
}


def suites_of(paths: Iterable[str]) -> frozenset[str]:
    """The suites that prove the changed paths."""
    return frozenset(suite for path in paths for suite in _suites_of(path))


def _suites_of(path: str) -> tuple[str, ...]:
    if within(path, WITHOUT_SUITES):
        return ()
    sources = [source for source in SUITES if within(path, [source])]
    if sources:
        return SUITES[max(sources, key=len)]
    folders = path.split("/")
    if len(folders) > 2 and folders[0] == "tests" and not folders[-1].startswith("test_"):
        return (f"tests/{folders[1]}",)  # a suite's own support code, however deep
    return ()

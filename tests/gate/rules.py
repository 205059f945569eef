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
)

FLEET = ("tests/fleet", FLEET_CONFORMANCE, "tests/fleet_faults", "tests/chaos")
INTEGRATIONS = ("tests/integrations", "tests/docs/test_agent_pages.py")

# Source → the suites that prove it. The longest matching path counts.
SUITES: dict[str, tuple[str, ...]] = {
    "README.md": ("tests/docs",),
    "agent": ("tests/docker", CONFORMANCE),
    "bench": ("tests/docker/test_figures.py", "tests/service/test_figures.py", "tests/chaos"),
    "deploy": ("tests/deploy",),
    "docs": ("tests/docs", "tests/deploy/test_pages.py"),
    "examples": ("tests/docs",),
    "images": ("tests/docker", "tests/deploy"),
    "registry": ("tests/docker", CONFORMANCE),
    "scripts": ("tests/deploy",),
    "hatch_build.py": ("tests/test_package.py",),
    "pyproject.toml": ("tests/test_package.py",),
    "src/sandlot/api": (CONFORMANCE, "tests/service", "tests/seed_examples", "tests/fleet", "tests/faults"),
    "src/sandlot/cli": ("tests/docs", "tests/fleet/test_cli.py", "tests/test_package.py"),
    "src/sandlot/client": (
        CONFORMANCE,
        "tests/fleet",
        FLEET_CONFORMANCE,
        "tests/seed_examples",
        "tests/faults",
    ),
    "src/sandlot/config": ("tests/docs", "tests/deploy", "tests/test_package.py"),
    "src/sandlot/domain": (CONFORMANCE, PROVIDER, *FLEET, "tests/faults"),
    "src/sandlot/fleet": FLEET,
    "src/sandlot/integrations": INTEGRATIONS,
    "src/sandlot/integrations/deepagents": ("tests/integrations/test_deepagents_*",),
    "src/sandlot/integrations/inspect_ai.py": ("tests/integrations/test_inspect_ai.py",),
    "src/sandlot/integrations/langchain": (
        "tests/integrations/test_langchain_*",
        "tests/docs/test_agent_pages.py",
    ),
    "src/sandlot/integrations/mcp": ("tests/integrations/test_mcp_*",),
    "src/sandlot/integrations/openai_agents": ("tests/integrations/test_openai_agents.py",),
    "src/sandlot/integrations/pydantic_ai.py": ("tests/integrations/test_pydantic_ai.py",),
    "src/sandlot/providers": ("tests/docker", CONFORMANCE, "tests/faults"),
    "src/sandlot/testing": (CONFORMANCE, PROVIDER, "tests/fleet"),
    "src/sandlot/wire": (CONFORMANCE, PROVIDER, "tests/fleet", FLEET_CONFORMANCE),
    "src/sandlot/wiring": (CONFORMANCE, FLEET_CONFORMANCE, "tests/test_package.py", "tests/faults"),
    "src/sandlot/worker": (CONFORMANCE, "tests/faults", FLEET_CONFORMANCE),
}


def suites_of(paths: Iterable[str]) -> frozenset[str]:
    """The suites that prove the changed paths. A test folder's own support code is proved by the whole folder."""
    suites: set[str] = set()
    for path in paths:
        sources = [source for source in SUITES if within(path, [source])]
        if sources:
            suites.update(SUITES[max(sources, key=len)])
        elif path.startswith("tests/") and not path.rpartition("/")[2].startswith("test_"):
            suites.add(path.rpartition("/")[0])
    return frozenset(suites)

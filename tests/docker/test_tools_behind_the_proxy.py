"""The tools in our images, as they are, in sandboxes whose only way out is the proxy: what is allowed works, and what
is not fails at once and says why.

The hosts outside are files on loopback. The proxy is the worker's own, at 127.0.0.1:3128 inside.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio

from sandlot.domain.environment import Tier
from sandlot.domain.execution import ExecRequest, ExecResult
from sandlot.domain.network.policy import parse_policy
from sandlot.domain.network.session_egress import SessionEgress
from sandlot.domain.network.variables import proxy_variables
from sandlot.providers.base import Sandbox
from sandlot.worker.network.dialer import Dialer
from sandlot.worker.network.options import ProxyOptions
from sandlot.worker.network.proxy import EgressProxy
from tests.docker.conftest import BASE, harness_for
from tests.docker.outside_files import NAME, serving, write_all
from tests.docker.shipped import build_image
from tests.unit.network.rig import LOOPBACK, new_authority, resolving

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

NEEDS_IMAGE = [pytest.mark.images, pytest.mark.timeout(900)]
IMAGES = {"uv": "python", "npm": "node", "pnpm": "node"}
TOOLS = ["curl", "wget", "git", "pip", "apt", *(pytest.param(tool, marks=NEEDS_IMAGE) for tool in IMAGES)]
# After the denial, and in all beyond the start of the tool itself, which on gVisor alone can take seconds.
# The bar is 1 s. Twice that here, because other tests run beside these.
DENIED_WITHIN_S = 2.0
ATTEMPTS = 3

# What each tool does, with the address of the host outside, and what it prints in the end.
ALLOWED = {
    "curl": "curl -sS {https}/hello.txt",
    "wget": "wget -q -O - --ca-certificate=ca.pem {https}/hello.txt",
    "git": "git clone -q {https}/repository.git && cat repository/read.me",
    "pip": f"pip install -q --index-url {{https}}/simple {NAME} && {NAME} && pip uninstall -q -y {NAME}",
    "apt": (
        "echo 'deb [trusted=yes] {http}/debian ./' > sources.list && "
        "apt='apt-get -q -o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::sourcelist=/workspace/sources.list' && "
        f"$apt update && $apt download {NAME} && dpkg-deb --field {NAME}_1.0_all.deb Package"
    ),
    "uv": f"uv pip install -q --index-url {{https}}/simple {NAME} && {NAME}",
    "npm": f"npm install -g --registry {{https}}/npm/ {NAME} && {NAME}",
    "pnpm": f"pnpm add -g --registry {{https}}/npm/ {NAME} && {NAME}",
}
PRINTED = {
    "curl": "hello from outside",
    "wget": "hello from outside",
    "git": "hello from git",
    "pip": "hello from a package",
    "apt": NAME,
    "uv": "hello from a package",
    "npm": "hello from npm",
    "pnpm": "hello from npm",
}

DENIED = {
    "curl": "curl -sS https://example.com/",
    "wget": "wget -nv -O - https://example.com/",
    "git": "git clone https://github.com/a/b",
    "pip": "pip install requests-toolbelt",
    "apt": "apt-get update -q --error-on=any",
    "uv": "uv pip install requests-toolbelt",
    "npm": "npm install left-pad",
    "pnpm": "pnpm add left-pad",
}
# What a tool does before it asks for anything. For most, that is what --version does. pip, apt and npm load far more
# for these commands than for that: on gVisor a second's worth. Here they do the same, and are told to look nowhere.
STARTING = {
    **{tool: f"{command.split()[0]} --version" for tool, command in DENIED.items()},
    "pip": f"{DENIED['pip']} --no-index",
    "npm": f"{DENIED['npm']} --offline",
    "apt": f"{DENIED['apt']} -o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::sourcelist=/dev/null",
}
# git, curl and uv show nothing of a refused tunnel but its status. `result.denied` has the rest.
SHOWN = {
    "curl": "CONNECT tunnel failed, response 403",
    "wget": "Sandlot denied example.com:443 (not allowed)",
    "git": "CONNECT tunnel failed, response 403",
    "pip": "Tunnel connection failed: 403 Sandlot denied pypi.org:443 (not allowed)",
    "apt": "403  Sandlot denied deb.debian.org:80 (not allowed)",
    "uv": "tunnel error: unsuccessful",
    "npm": "403 Sandlot denied registry.npmjs.org:443 (not allowed)",
    "pnpm": "denied",
}


@dataclass
class Inside:
    """``started``: how long each tool took to start, on this tier. Measured once."""

    sandbox: Sandbox
    started: dict[str, float]
    variables: dict[str, str] = field(default_factory=dict)

    async def run(self, command: str) -> ExecResult:
        request = ExecRequest(command, env=self.variables, timeout_s=120, merge_output=True)
        return await self.sandbox.run(request)

    async def starting_s(self, tool: str) -> float:
        """How long the tool takes without a request, at best."""
        if tool not in self.started:
            took = []
            for _ in range(ATTEMPTS):
                began = time.monotonic()
                await self.run(STARTING[tool])
                took.append(time.monotonic() - began)
            self.started[tool] = min(took)
        return self.started[tool]


@dataclass(frozen=True)
class Refusal:
    """A command that failed. ``after_s``: how long it went on after its first denial, if a proxy denied it."""

    result: ExecResult
    whole_s: float
    after_s: float = 0.0

    def is_quick(self, starting_s: float) -> bool:
        return max(self.whole_s - starting_s, self.after_s) < DENIED_WITHIN_S


@dataclass
class Sandboxes:
    """One for each image, on a tier."""

    tier: Tier
    stack: AsyncExitStack
    made: dict[str, Sandbox] = field(default_factory=dict)  # by image
    started: dict[str, float] = field(default_factory=dict)  # by tool

    async def with_tool(self, tool: str) -> Sandbox:
        image = await asyncio.to_thread(build_image, IMAGES[tool]) if tool in IMAGES else BASE
        if image not in self.made:
            harness = await self.stack.enter_async_context(harness_for(self.tier, image))
            self.made[image] = await harness.create()
        return self.made[image]


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["runc", "runsc"])
async def sandboxes(request: pytest.FixtureRequest) -> AsyncIterator[Sandboxes]:
    async with AsyncExitStack() as stack:
        yield Sandboxes(Tier(request.param), stack)


@pytest_asyncio.fixture(loop_scope="session")
async def inside(tool: str, sandboxes: Sandboxes) -> Inside:
    return Inside(await sandboxes.with_tool(tool), sandboxes.started)


@asynccontextmanager
async def proxied(inside: Inside, policy: list[str]) -> AsyncIterator[list[float]]:
    """As a session with this network policy has it. Gives the times of different denials."""
    options = ProxyOptions(allowed=LOOPBACK)
    dialer = Dialer(options)
    egress = SessionEgress(parse_policy(policy))
    denied_at: list[float] = []
    proxy = EgressProxy(lambda: egress, dialer, options, lambda _: denied_at.append(time.monotonic()))
    listener = await inside.sandbox.listen("127.0.0.1:3128")
    serving = asyncio.create_task(proxy.serve_listener(listener))
    inside.variables |= proxy_variables()
    try:
        yield denied_at
    finally:
        await listener.close()
        await serving
        await proxy.close()
        dialer.close()


@pytest.mark.parametrize("tool", TOOLS)
async def test_what_is_allowed_works(
    tool: str, inside: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving(monkeypatch, index=["127.0.0.1"])
    authority = new_authority(tmp_path)
    files = tmp_path / "files"
    files.mkdir()
    with serving(files) as http, serving(files, authority.server("index.test")) as https:
        addresses = {"http": f"http://index.test:{http}", "https": f"https://index.test:{https}"}
        write_all(files, addresses["https"])
        await inside.sandbox.files.write("ca.pem", authority.pem)
        for name in ("CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"):
            inside.variables[name] = "/workspace/ca.pem"
        async with proxied(inside, [f"index.test:{http}", f"index.test:{https}"]) as denied_at:
            result = await inside.run(ALLOWED[tool].format(**addresses))
    assert result.exit_code == 0, result.stdout
    assert result.stdout.strip().endswith(PRINTED[tool].encode()), result.stdout
    assert denied_at == []


@pytest.mark.parametrize("tool", TOOLS)
async def test_what_is_denied_fails_at_once(tool: str, inside: Inside) -> None:
    starting_s = await inside.starting_s(tool)
    tried = []
    for _ in range(ATTEMPTS):
        async with proxied(inside, []) as denied_at:
            began = time.monotonic()
            result = await inside.run(DENIED[tool])
            ended = time.monotonic()
        assert result.exit_code != 0
        assert SHOWN[tool].encode() in result.stdout, result.stdout
        assert denied_at
        tried.append(Refusal(result, ended - began, ended - denied_at[0]))
        if tried[-1].is_quick(starting_s):
            break
    report(tool, starting_s, tried)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("variables", [{}, proxy_variables()], ids=["no variables", "nobody listens"])
async def test_without_a_proxy_it_fails_at_once(tool: str, inside: Inside, variables: dict[str, str]) -> None:
    starting_s = await inside.starting_s(tool)
    inside.variables |= variables
    tried = []
    for _ in range(ATTEMPTS):
        began = time.monotonic()
        result = await inside.run(DENIED[tool])
        assert result.exit_code != 0
        tried.append(Refusal(result, time.monotonic() - began))
        if tried[-1].is_quick(starting_s):
            break
    report(tool, starting_s, tried)


def report(tool: str, starting_s: float, tried: list[Refusal]) -> None:
    """Say how long it took, and fail if no attempt was quick."""
    figures = "; ".join(
        f"{each.whole_s:.2f} s in all, {each.after_s:.2f} s after the denial" for each in tried
    )
    text = f"{tool} fails in {figures}; its start takes {starting_s:.2f} s"
    print(text)
    assert tried[-1].is_quick(starting_s), f"{text}\n{tried[-1].result.stdout.decode()}"

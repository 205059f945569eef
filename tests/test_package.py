"""`pip install .` from a clone needs nothing but pip: the wheel carries the agent, the one to release for both
machines. And what pytest runs from a clone is all of its tests.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
ELF_MACHINE = {"amd64": 62, "arm64": 183}


# Of the server alone; none of them may come with the SDK.
SERVER_PACKAGES = {
    "fastapi",
    "starlette",
    "uvicorn",
    "pydantic",
    "aiodocker",
    "aiohttp",
    "pyyaml",
    "redis",
    "structlog",
}
MAX_SDK_PACKAGES = 18

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(folder),
        str(ROOT),
    ]
    environ = {**os.environ, "AGENT_ARCHITECTURES": "all"}
    subprocess.run(pip, check=True, stdin=subprocess.DEVNULL, env=environ)
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_the_sdk_is_light(wheel: Path, tmp_path: Path) -> None:
    """`pip install sandlot`, as a user does it: what comes with it, and that the command line works."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path)], check=True)
    python = tmp_path / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", str(wheel)], check=True, stdin=subprocess.DEVNULL
    )
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format=json"], check=True, capture_output=True, text=True
    )
    packages = {row["name"].lower() for row in json.loads(listed.stdout)} - {"pip", "setuptools"}
    assert len(packages) <= MAX_SDK_PACKAGES, sorted(packages)
    assert not packages & SERVER_PACKAGES
    told = subprocess.run(
        [tmp_path / "bin" / "sandlot", "version"], check=True, capture_output=True, text=True
    )
    assert told.stdout.startswith("sandlot ")
    serve = subprocess.run(
        [tmp_path / "bin" / "sandlot", "serve"], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert serve.returncode == 1
    assert "pip install '.[server]'" in serve.stderr


def test_importing_costs_little() -> None:
    """Beside httpx, which every client of HTTP imports; the figure itself is in docs/benchmarks.md."""

    def seconds(statement: str) -> float:
        timed = f"import time; began = time.perf_counter(); {statement}; print(time.perf_counter() - began)"
        runs = [
            subprocess.run([sys.executable, "-c", timed], check=True, capture_output=True) for _ in range(5)
        ]
        return min(float(run.stdout) for run in runs)

    assert seconds("import sandlot") < seconds("import httpx") / 2


def test_wheel_carries_the_agent(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        for arch, machine in ELF_MACHINE.items():
            program = archive.read(f"sandlot/providers/link/bin/sandlot-agent-{arch}")
            assert program[:4] == b"\x7fELF"
            assert int.from_bytes(program[18:20], "little") == machine
            assert b"/lib64/ld-linux" not in program, "the agent is static"
    assert "sandlot/api/console/dist/index.html" in names
    assert [name for name in names if name.startswith("sandlot/api/console/dist/assets/index-")]
    assert "sandlot/py.typed" in names
    assert "sandlot/providers/docker/seccomp.toml" in names
    assert "sandlot/registry_data/environments/base.yaml" in names
    assert "sandlot/images_data/base/Dockerfile" in names
    assert not [name for name in names if name.startswith(("tests/", "bench/"))]


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """hatch_build.py, with a compiler that writes down what it was asked for."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def compile_for(arch: str, go: str, source: Path, target: Path) -> None:
        target.write_text(arch)
        soon = time.time() + 60
        os.utime(target, (soon, soon))

    monkeypatch.setattr(module, "compile_for", compile_for)
    monkeypatch.setattr(module, "find_go", lambda: "go")
    monkeypatch.delenv("AGENT_ARCHITECTURES", raising=False)
    return module


@pytest.mark.parametrize(
    ("machine", "asked", "built"),
    [
        ("x86_64", None, {"amd64"}),
        ("aarch64", None, {"arm64"}),
        ("arm64", None, {"arm64"}),
        ("riscv64", None, {"amd64", "arm64"}),
        ("x86_64", "all", {"amd64", "arm64"}),
    ],
)
def test_a_clone_builds_the_agent_of_this_machine_alone(
    recipe: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    machine: str,
    asked: str | None,
    built: set[str],
) -> None:
    """U14: for both it took 76 s."""
    monkeypatch.setattr(recipe.platform, "machine", lambda: machine)
    if asked is not None:
        monkeypatch.setenv("AGENT_ARCHITECTURES", asked)
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent/go.mod").write_text("module agent\n")
    folder = tmp_path / recipe.DESTINATION
    folder.mkdir(parents=True)
    for arch in recipe.ARCHITECTURES:
        (folder / f"sandlot-agent-{arch}").write_text("of an earlier source")
        os.utime(folder / f"sandlot-agent-{arch}", (1, 1))
    recipe.build_agent(tmp_path, recipe.architectures())
    assert {path.read_text() for path in folder.iterdir()} == built
    hook = recipe.AgentBuildHook.__new__(recipe.AgentBuildHook)
    monkeypatch.setattr(recipe.AgentBuildHook, "root", str(tmp_path))
    data: dict[str, object] = {}
    hook.initialize("standard", data)
    assert ("tag" in data) == (len(built) == 1)


def test_an_architecture_that_nobody_knows(recipe: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_ARCHITECTURES", "amd64")
    with pytest.raises(recipe.AgentBuildError, match="it is `all`, or left out"):
        recipe.architectures()


def test_a_build_can_leave_the_console_out(
    recipe: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[tuple[str, ...]] = []
    monkeypatch.setattr(recipe, "run_npm", lambda _source, *words: called.append(words))
    (tmp_path / "console").mkdir()
    (tmp_path / "console/package-lock.json").write_text("{}")
    monkeypatch.setenv(recipe.SKIP_CONSOLE, "1")
    recipe.build_console(tmp_path)
    assert called == []
    monkeypatch.delenv(recipe.SKIP_CONSOLE)
    with pytest.raises(FileNotFoundError):  # the npm of this test installs nothing
        recipe.build_console(tmp_path)
    assert called[0][0] == "ci"


def test_a_console_that_is_newer_than_its_sources_is_not_built_again(
    recipe: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe, "run_npm", lambda *_: pytest.fail("nothing has changed"))
    (tmp_path / "console/node_modules").mkdir(parents=True)
    (tmp_path / "console/package-lock.json").write_text("{}")
    index = tmp_path / recipe.CONSOLE_DESTINATION / "index.html"
    index.parent.mkdir(parents=True)
    index.write_text("built")
    soon = time.time() + 60
    os.utime(index, (soon, soon))
    (tmp_path / "console/node_modules/of-npm").write_text("x")
    os.utime(tmp_path / "console/node_modules/of-npm", (soon + 60, soon + 60))
    recipe.build_console(tmp_path)
    assert index.read_text() == "built"


def without_a_path(testpaths: Iterable[str]) -> set[str]:
    """Test files that pytest does not come to by these paths."""
    files = {path for name in ("test_*.py", "*_test.py") for path in (ROOT / "tests").rglob(name)}
    reached = [ROOT / path for path in testpaths]
    return {
        str(file.relative_to(ROOT))
        for file in files
        if not any(file.is_relative_to(path) for path in reached)
    }


def test_no_folder_of_tests_is_forgotten() -> None:
    """``testpaths`` is a list, for its order: a new folder that is not in it would never be run."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    testpaths: list[str] = options["testpaths"]
    assert not without_a_path(testpaths)
    for one in testpaths:
        assert without_a_path(path for path in testpaths if path != one), f"{one} leads to no test of its own"

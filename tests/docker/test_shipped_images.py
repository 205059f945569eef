"""The images that we ship: what they have, who installs what where, and what starts from them."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandlot.domain.capacity.limits import MIB, Limits
from sandlot.domain.environment import Tier
from sandlot.domain.execution import ExecRequest
from sandlot.providers.base import Sandbox
from tests.docker.conftest import BASE, SLIM, docker, harness_for
from tests.docker.outside_files import NAME, WHEEL, write_wheel
from tests.docker.shipped import build_image

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

NEEDS_IMAGE = [pytest.mark.images, pytest.mark.timeout(900)]
ON_DEMAND = [pytest.param(name, marks=NEEDS_IMAGE) for name in ("python", "data-science", "node")]
ROOMY = Limits(memory_bytes=1024 * MIB, cpus=1.0)


@asynccontextmanager
async def sandbox_of(image: str, tier: Tier = Tier.RUNC) -> AsyncIterator[Sandbox]:
    async with harness_for(tier, image) as harness:
        yield await harness.create(ROOMY)


async def output(sandbox: Sandbox, command: str) -> str:
    result = await sandbox.run(ExecRequest(command, timeout_s=120, merge_output=True))
    assert result.exit_code == 0, (command, result.stdout)
    return result.stdout.decode().strip()


async def shipped(name: str) -> str:
    return BASE if name == "base" else await asyncio.to_thread(build_image, name)


@pytest.fixture
def tag() -> Iterator[str]:
    """A name for an image; it and what was prepared from it are gone after the test."""
    name = f"sandlot-test:{secrets.token_hex(8)}"
    yield name
    image_id = docker("image", "inspect", "--format", "{{.Id}}", name).strip()
    prepared = docker("image", "ls", "--quiet", "--filter", f"label=sandlot.prepared-from={image_id}")
    docker("image", "rm", "--force", *prepared.split(), name)


def build(folder: Path, tag: str, dockerfile: str) -> None:
    (folder / "Dockerfile").write_text(dockerfile)
    ran = subprocess.run(
        ["/usr/bin/docker", "build", "--tag", tag, str(folder)], capture_output=True, text=True, timeout=600
    )
    assert ran.returncode == 0, ran.stderr


# --- what starts from our images ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["base", *ON_DEMAND])
async def test_what_a_dockerfile_installs_is_shared_and_not_copied_into_workspaces(
    name: str, tag: str, tmp_path: Path
) -> None:
    write_wheel(tmp_path)
    start = await shipped(name)
    build(tmp_path, tag, f"FROM {start}\nCOPY {WHEEL} /tmp/\nRUN pip install /tmp/{WHEEL}\n")
    async with sandbox_of(start) as before, sandbox_of(tag) as after:
        files = "find /workspace -mindepth 1 | sort"
        assert await output(after, files) == await output(before, files)
        where = await output(after, "python3 -c 'import hello_sandlot; print(hello_sandlot.__file__)'")
        assert where.startswith("/usr/local/lib/python3")
        assert await output(after, NAME) == "hello from a package"


async def test_what_a_dockerfile_does_without_naming_a_folder(tag: str, tmp_path: Path) -> None:
    build(
        tmp_path, tag, f"FROM {BASE}\nRUN touch here && git config --global user.name Ada && id -u > /who\n"
    )
    async with sandbox_of(tag) as sandbox:
        assert await output(sandbox, "cat /who; ls -A /workspace; echo $HOME; pwd; whoami") == (
            "0\n/workspace\n/workspace\nsandboxuser"
        )


async def test_an_env_of_a_dockerfile_counts(tag: str, tmp_path: Path) -> None:
    dockerfile = (
        f"FROM {BASE}\nENV PIP_RETRIES=7 PATH=/opt/mine:$PATH\n"
        "LABEL sandlot.variable.PATH=/opt/first sandlot.variable.GREETING='good day'\n"
        'RUN test "$PIP_RETRIES" = 7 && test -z "$GREETING" && test -z "$APT_CONFIG"\n'
    )
    build(tmp_path, tag, dockerfile)
    async with sandbox_of(tag) as sandbox:
        assert await output(sandbox, "echo $PIP_RETRIES; echo $GREETING; echo $APT_CONFIG") == (
            "7\ngood day\n/etc/apt/sandbox.conf"
        )
        path = await output(sandbox, "echo $PATH")
        assert path.startswith("/opt/first:/opt/mine:/workspace/.local/bin:/usr/local/sbin:")


async def test_an_image_rebuilt_under_its_name(tag: str, tmp_path: Path) -> None:
    build(tmp_path, tag, f"FROM {SLIM}\nRUN echo 1 > /version\n")
    async with harness_for(Tier.RUNC, tag) as harness:
        assert await output(await harness.create(), "cat /version") == "1"
        assert await harness.provider.forget_rebuilt_images() == []
        build(tmp_path, tag, f"FROM {SLIM}\nRUN echo 2 > /version\n")
        assert await output(await harness.create(), "cat /version") == "1"  # until it is told
        assert await harness.provider.forget_rebuilt_images() == [tag]
        assert await output(await harness.create(), "cat /version") == "2"
        assert await harness.provider.forget_rebuilt_images() == []


# --- what sandboxes of them can do ----------------------------------------------------------------


@pytest.mark.parametrize("name", ["base", *ON_DEMAND[:2]])
@pytest.mark.parametrize("tier", [Tier.RUNC, Tier.RUNSC])
async def test_pip_installs_for_the_sandboxs_user(name: str, tier: Tier, tmp_path: Path) -> None:
    async with sandbox_of(await shipped(name), tier) as sandbox:
        await sandbox.files.write(WHEEL, write_wheel(tmp_path).read_bytes())
        said = await output(sandbox, f"pip install ./{WHEEL}")
        assert "externally-managed" not in said
        assert await output(sandbox, f"{NAME}; python3 -c 'import hello_sandlot; hello_sandlot.main()'") == (
            "hello from a package\nhello from a package"
        )
        await output(sandbox, f"python -m pip uninstall -y {NAME}")


@pytest.mark.parametrize("name", ON_DEMAND[:1])
async def test_python_has_uv_and_a_virtual_environment(name: str, tmp_path: Path) -> None:
    async with sandbox_of(await shipped(name)) as sandbox:
        assert await output(sandbox, "command -v python python3 pip pip3") == "\n".join(
            f"/workspace/.venv/bin/{name}" for name in ("python", "python3", "pip", "pip3")
        )
        await sandbox.files.write(WHEEL, write_wheel(tmp_path).read_bytes())
        await output(sandbox, f"uv pip install --offline ./{WHEEL}")
        where = await output(sandbox, "python -c 'import hello_sandlot; print(hello_sandlot.__file__)'")
        assert where.startswith("/workspace/.venv/lib/")
        assert int((await output(sandbox, "du -sk /workspace/.venv")).split()[0]) < 500


@pytest.mark.parametrize("name", ON_DEMAND[1:2])
@pytest.mark.parametrize("tier", [Tier.RUNC, Tier.RUNSC])
async def test_data_science_has_what_it_says(name: str, tier: Tier) -> None:
    program = """
import bs4, io, lxml, matplotlib, numpy, openpyxl, pandas, PIL, requests, scipy, seaborn, sklearn, statsmodels.api
import matplotlib.pyplot as plt
from sklearn.linear_model import LinearRegression

table = pandas.DataFrame({"x": [1, 2, 3], "y": [2.0, 4.0, 6.0]})
table.to_excel("table.xlsx")
back = pandas.read_excel("table.xlsx", index_col=0)
table.plot.scatter("x", "y")
plt.savefig("plot.png")
model = LinearRegression().fit(back[["x"]], back["y"])
print(model.predict(pandas.DataFrame({"x": [10]}))[0].round(6))
print(table.to_markdown().splitlines()[0])
"""
    async with sandbox_of(await shipped(name), tier) as sandbox:
        await sandbox.files.write("program.py", program.encode())
        assert (await output(sandbox, "python program.py")).splitlines()[0] == "20.0"
        assert (await sandbox.files.read_bytes("plot.png")).startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ON_DEMAND[2:])
@pytest.mark.parametrize("tier", [Tier.RUNC, Tier.RUNSC])
async def test_node_has_npm_pnpm_and_tsx(name: str, tier: Tier) -> None:
    async with sandbox_of(await shipped(name), tier) as sandbox:
        for tool in ("node", "npm", "npx", "pnpm", "tsx"):
            await output(sandbox, f"{tool} --version")
        await sandbox.files.write("hello.ts", b"const n: number = 6 * 7; console.log(`n is ${n}`)\n")
        assert await output(sandbox, "tsx hello.ts") == "n is 42"

"""pip, uv and npm as they are, through the package cache."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
from tests.unit.network.registry_rig import Index, caching
from tests.unit.network.rig import Rig

pytestmark = pytest.mark.slow  # each client is a process of its own
SECONDS = 120
MB = 1_000_000


def wheel(name: str, payload: bytes) -> bytes:
    """A wheel that pip installs: one module, and a file of data."""
    info = f"{name}-1.0.dist-info"
    content = {
        f"{name}.py": b"VALUE = 42\n",
        f"{name}_data.bin": payload,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = []
    for path, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record.append(f"{path},sha256={digest},{len(data)}")
    content[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for path, data in content.items():
            archive.writestr(path, data)
    return file.getvalue()


def publish(index: Index, name: str, payload: bytes) -> None:
    data = wheel(name, payload)
    file = f"{name}-1.0-py3-none-any.whl"
    index.pages[f"/f/{file}"] = data
    link = f'<a href="/f/{file}#sha256={hashlib.sha256(data).hexdigest()}">{file}</a>'
    index.pages[f"/simple/{name}/"] = f"<!DOCTYPE html><html><body>{link}</body></html>".encode()


async def run(rig: Rig, folder: Path, *command: str) -> str:
    """A program whose variables are what a sandbox has: the proxy, and the registries of the cache."""
    broker = rig.proxy.broker
    assert broker is not None
    assert broker.packages is not None
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "HTTP_PROXY": f"http://127.0.0.1:{rig.port}",
        "http_proxy": f"http://127.0.0.1:{rig.port}",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "npm_config_update_notifier": "false",
        "npm_config_audit": "false",
    }
    for registry in broker.packages.registries.values():
        env |= registry.variables
    process = await asyncio.create_subprocess_exec(
        *command, env=env, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(SECONDS):
        said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    return said.decode()


def pip(target: str, *names: str) -> list[str]:
    return [sys.executable, "-m", "pip", "install", "--no-cache-dir", "--target", target, *names]


async def test_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with caching(monkeypatch, tmp_path, policy=["pypi"]) as (rig, index):
        publish(index, "first", b"x" * 1000)
        for target in ("one", "two"):
            await run(rig, tmp_path, *pip(target, "first"))
            assert (tmp_path / target / "first.py").read_text() == "VALUE = 42\n"
        assert index.paths() == ["/simple/first/", "/f/first-1.0-py3-none-any.whl"]
        assert rig.reported == []


def uv(target: str, *names: str) -> list[str]:
    program = Path(sys.executable).parent / "uv"
    if not program.exists():
        pytest.skip("uv is not installed")
    options = ("--no-cache", "--python", sys.executable, "--target", target)
    return [str(program), "pip", "install", *options, *names]


async def test_uv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with caching(monkeypatch, tmp_path, policy=["pypi"]) as (rig, index):
        publish(index, "first", b"x" * 1000)
        await run(rig, tmp_path, *uv("one", "first"))
        assert (tmp_path / "one/first.py").exists()
        assert set(index.paths()) == {"/simple/first/", "/f/first-1.0-py3-none-any.whl"}


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
async def test_npm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = {"name": "@team/first", "version": "1.0.0", "main": "index.js"}
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, data in {
            "package.json": json.dumps(package).encode(),
            "index.js": b"module.exports = 42\n",
        }.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    tarball = file.getvalue()
    async with caching(monkeypatch, tmp_path, policy=["npm"]) as (rig, index):
        assert index.host is not None
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(tarball).digest()).decode()
        url = f"https://index.test:{index.host.port}/npm/@team/first/-/first-1.0.0.tgz"
        page = {
            "name": "@team/first",
            "dist-tags": {"latest": "1.0.0"},
            "versions": {"1.0.0": {**package, "dist": {"tarball": url, "integrity": integrity}}},
        }
        index.type = "application/json"
        index.pages = {
            "/npm/@team%2ffirst": json.dumps(page).encode(),
            "/npm/@team/first/-/first-1.0.0.tgz": tarball,
        }
        for target in ("one", "two"):
            (tmp_path / target).mkdir()
            await run(
                rig,
                tmp_path / target,
                *("npm", "install", "--no-fund", "--cache", f"cache-{target}", "@team/first"),
            )
            installed = tmp_path / target / "node_modules/@team/first/index.js"
            assert installed.read_text() == "module.exports = 42\n"
        assert sorted(index.paths()) == ["/npm/@team%2ffirst", "/npm/@team/first/-/first-1.0.0.tgz"]


@pytest.mark.alone
async def test_the_second_install_of_a_large_wheel_is_five_times_as_fast(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A wheel of 50 MB, from a registry that sends 4 MB in a second. By uv, which itself takes little time."""
    async with caching(monkeypatch, tmp_path, policy=["pypi"], max_bytes=1000 * MB) as (rig, index):
        publish(index, "large", os.urandom(50 * MB))
        index.piece, index.pause_s = MB // 10, 0.025
        took = []
        for target in ("one", "two"):
            began = time.monotonic()
            await run(rig, tmp_path, *uv(target, "large"))
            took.append(time.monotonic() - began)
            assert (tmp_path / target / "large_data.bin").stat().st_size == 50 * MB
        print(f"first {took[0]:.1f} s, second {took[1]:.1f} s")
        assert took[0] >= 5 * took[1], took
        assert index.paths().count("/f/large-1.0-py3-none-any.whl") == 1

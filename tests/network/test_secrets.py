"""Secrets and the package cache in real sessions, as an operator sets them up and a user meets them."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from sandlot.client.async_client import AsyncClient
from sandlot.domain.execution import Verdict
from tests.docker.test_secrets import SEARCH, VALUE, repeating
from tests.network.conftest import open_worker, serve_folder
from tests.network.test_tools import wheel
from tests.unit.cli.conftest import SANDLOT
from tests.unit.cli.conftest import environment as variables
from tests.unit.network.rig import Authority, _pem, outside

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

ENVIRONMENT = """
name: {name}
description: A test.
image: sandlot/base
tier: {tier}
network: [{target}]
gateways:
  api:
    upstream: https://{target}
    secret: api
    env:
      API_URL: "{{gateway}}/v1"
inject: [api]
"""


@asynccontextmanager
async def worker_for(
    target: str = "a.test:443", **options: object
) -> AsyncIterator[tuple[AsyncClient, Path]]:
    """A worker with an environment on each tier that uses a secret."""
    folder = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    environments = folder / "registry/environments"
    environments.mkdir(parents=True)
    for tier in ("runc", "runsc"):
        (environments / f"{tier}.yaml").write_text(
            ENVIRONMENT.format(name=f"secret-{tier}", tier=tier, target=target)
        )
    service = await open_worker(folder / "data", registry_dir=folder / "registry", **options)
    try:
        yield AsyncClient(service=service), folder / "data"
    finally:
        await service.close()
        shutil.rmtree(folder, ignore_errors=True)


def set_secret(data_dir: Path, target: str) -> None:
    subprocess.run(
        [*SANDLOT, "secrets", "set", "api", "--host", target],
        input=VALUE,
        text=True,
        check=True,
        capture_output=True,
        env=variables(SANDLOT_DATA_DIR=str(data_dir)),
    )


async def test_a_secret(
    names: list[str], authority: Authority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(_pem(authority.certificate))
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))  # what the worker's machine trusts
    async with outside(repeating, authority.server("a.test")) as host:
        target = f"a.test:{host.port}"
        async with worker_for(target) as (client, data_dir):
            for tier in ("runc", "runsc"):
                async with client.create(f"secret-{tier}") as session:
                    if tier == "runc":
                        denied = await session.run('curl -fsS "$API_URL"')
                        assert denied.verdict is Verdict.EGRESS_DENIED
                        assert [each.rule for each in denied.denied] == ["secret: api"]
                        set_secret(data_dir, target)
                        await session.run("sleep 2")  # the worker follows within a second
                    for url in ('"$API_URL"', f"https://{target}/v1"):
                        host.received.clear()
                        result = await session.run(f"curl -fsSi {url} | tee -a answers")
                        assert result.ok, result
                        assert "x-seen: ***" in result.output
                        assert VALUE not in result.output
                        assert VALUE.encode() in host.received[-1]
                    await session.files.write("search.py", SEARCH.encode())
                    searched = await session.run("python3 search.py")
                    assert searched.output.strip().endswith(" []"), searched
                    # A person who types it finds no trace of it in the history.
                    await session.run(f"echo {VALUE} > /dev/null")
                    history = [event async for event in session.history()]
                    assert VALUE not in str(history)
                    assert "echo ***" in str(history)


async def test_packages(names: list[str], tmp_path: Path) -> None:
    """The second sandbox installs what the first one did, without a question to the registry for the file."""
    wheel(tmp_path)
    async with outside(partial(serve_folder, tmp_path)) as index:
        options = {"package_cache": True, "pypi_index": f"http://a.test:{index.port}/simple"}
        async with worker_for(**options) as (client, _):
            for environment in ("base", "gvisor"):
                async with client.create(environment, network=["pypi"]) as session:
                    result = await session.run(
                        "pip install -q greeting && python3 -m greeting", timeout_s=120
                    )
                    assert result.output.endswith("hello from a package\n"), result
            asked = [bytes(heard).split(b" ")[1] for heard in index.received]
            assert asked.count(b"/simple/greeting/greeting-1.0-py3-none-any.whl") == 1
            async with client.create("base") as session:
                denied = await session.run("curl -fsS http://gateway.sandlot/pypi/simple/greeting/")
                assert denied.verdict is Verdict.EGRESS_DENIED
                assert [each.target for each in denied.denied] == ["pypi.org:443"]

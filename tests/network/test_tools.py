"""Real tools in real sandboxes, through the proxy: what is allowed works, and what is not fails at once."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import zipfile
from functools import partial
from pathlib import Path

import pytest

from sandlot.client.async_session import AsyncSession
from sandlot.domain.execution import Verdict
from tests.network.conftest import serve_folder
from tests.unit.network.rig import OK, Authority, _pem, answering, outside

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]


async def test_curl(session: AsyncSession, names: list[str], authority: Authority) -> None:
    async with outside(answering(OK)) as plain, outside(answering(OK), authority.server("a.test")) as secure:
        await session.files.write("ca.pem", _pem(authority.certificate))
        urls = (f"http://a.test:{plain.port}", f"--cacert ca.pem https://a.test:{secure.port}")
        for url in urls:
            denied = await session.run(f"curl -fsS {url}")
            assert denied.verdict is Verdict.EGRESS_DENIED, denied
            assert [each.rule for each in denied.denied] == ["not allowed"]
        assert names == []  # nothing was resolved
        await session.network.allow(f"a.test:{plain.port}", f"a.test:{secure.port}")
        for url in urls:
            assert (await session.run(f"curl -fsS {url}")).stdout == "hello"
        # The name in TLS is another than the one that was allowed.
        fronted = await session.run(
            f"curl -sS -k --connect-to b.test:443:a.test:{secure.port} https://b.test/ -m 20"
        )
        assert [each.rule for each in fronted.denied] == ["server name"]
        assert (await session.network.status()).traffic.received_bytes > 0


async def test_a_large_download(session: AsyncSession, names: list[str]) -> None:
    size = 32 * 1024 * 1024
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + bytes(size)
    async with outside(answering(answer)) as host:
        await session.network.allow(f"a.test:{host.port}")
        result = await session.run(f"curl -fsS http://a.test:{host.port} | sha256sum", timeout_s=120)
        assert result.stdout.split()[0] == hashlib.sha256(bytes(size)).hexdigest()


def wheel(folder: Path) -> None:
    """A package ``greeting`` in a simple index."""
    project = folder / "simple" / "greeting"
    project.mkdir(parents=True)
    name = "greeting-1.0-py3-none-any.whl"
    files = {
        "greeting.py": "print('hello from a package')\n",
        "greeting-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n",
        "greeting-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    records = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        records.append(f"{path},sha256={digest},{len(text)}")
    files["greeting-1.0.dist-info/RECORD"] = "\n".join([*records, "greeting-1.0.dist-info/RECORD,,", ""])
    with zipfile.ZipFile(project / name, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    (project / "index.html").write_text(f'<a href="{name}">{name}</a>')


async def test_pip(session: AsyncSession, names: list[str], tmp_path: Path) -> None:
    wheel(tmp_path)
    async with outside(partial(serve_folder, tmp_path)) as index:
        await session.network.allow(f"a.test:{index.port}")
        url = f"http://a.test:{index.port}/simple/"
        result = await session.run(
            f"pip install -q --index-url {url} --trusted-host a.test greeting && python3 -m greeting",
            timeout_s=120,
        )
        assert result.stdout.endswith("hello from a package\n"), result


async def test_pip_without_a_policy_fails_at_once_and_says_why(session: AsyncSession) -> None:
    result = await session.run("pip install requests", timeout_s=120)
    assert result.verdict is Verdict.EGRESS_DENIED
    assert [each.target for each in result.denied] == ["pypi.org:443"]
    # pip shows the reason, and tries once more, at once. By default it would try for many seconds.
    assert (
        "Sandlot denied pypi.org:443 (not allowed). To allow it, call session.network.allow(" in result.output
    )
    assert (await session.network.status()).traffic.denied <= 2


async def test_git_clone(session: AsyncSession, names: list[str], tmp_path: Path) -> None:
    source, bare = tmp_path / "source", tmp_path / "served" / "repo.git"
    git = ("git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main")
    subprocess.run([*git, "init", "-q", str(source)], check=True)
    (source / "file").write_text("cloned\n")
    subprocess.run([*git, "-C", str(source), "add", "."], check=True)
    subprocess.run([*git, "-C", str(source), "commit", "-qm", "first"], check=True)
    subprocess.run([*git, "clone", "-q", "--bare", str(source), str(bare)], check=True)
    subprocess.run([*git, "-C", str(bare), "update-server-info"], check=True)
    async with outside(partial(serve_folder, tmp_path / "served")) as host:
        url = f"http://a.test:{host.port}/repo.git"
        denied = await session.run(f"git clone -q {url}")
        assert denied.verdict is Verdict.EGRESS_DENIED
        assert "403" in denied.output
        await session.network.allow(f"a.test:{host.port}")
        assert (await session.run(f"git clone -q {url} && cat repo/file")).stdout == "cloned\n"


async def test_there_is_no_other_way_out(session: AsyncSession) -> None:
    await session.network.set("public")
    for command in (
        "curl -sS --noproxy '*' -m 5 https://example.com",
        "python3 -c 'import socket; socket.getaddrinfo(\"example.com\", 443)'",
        "bash -c 'exec 3<>/dev/tcp/93.184.216.34/80'",
    ):
        result = await session.run(command)
        assert not result.ok
        assert result.denied == ()
    interfaces = await session.run("ls /sys/class/net 2>/dev/null || cut -d: -f1 /proc/net/dev")
    assert "eth" not in interfaces.stdout


async def test_the_workers_own_machine_is_out_of_reach(session: AsyncSession, names: list[str]) -> None:
    """An address that the operator does not let sandboxes reach, however it is asked for."""
    await session.network.set("public")
    await session.network.allow("169.254.169.254:80", "10.0.0.1:80")
    for url in ("http://169.254.169.254/", "http://10.0.0.1/"):
        result = await session.run(f"curl -fsS --noproxy '' -m 20 {url}")
        assert [each.rule for each in result.denied] == ["not a public address"]

"""55, 56, 98: paths, links and commands written to reach what they must not. What comes back is the sandbox's own."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandlot.domain.capacity.limits import Limits
from sandlot.domain.errors import FileProblem, InvalidRequest
from sandlot.domain.execution import ExecRequest
from sandlot.providers.base import Sandbox
from sandlot.testing.provider_suite import Harness
from tests.attacks.canaries import Watch, new_word

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

UP = "../" * 12
# Each is put before the path of a file of the host.
CLIMBS = {
    "absolute": "",
    "dots": UP,
    "dots from a folder": "/workspace/" + UP,
    "dots in the middle": "a/b/../../" + UP,
    "encoded": "%2e%2e%2f" * 12,
    "encoded twice": "%252e%252e%252f" * 12,
    "backslashes": "..\\" * 12,
    "overlong": "\udcc0\udcae\udcc0\udcae/" * 12,
    "slash of another width": "..\uff0f" * 12,
    "dots of another kind": "\u2025/" * 12,
    "many slashes": "//../" * 12,
    "root of the agent": "/proc/1/root/",
    "root of its own": "/proc/self/root/",
    "folder of the agent": "/proc/1/cwd/",
    "descriptor": "/proc/self/fd/0/",
    "a url": "file:///",
    "home": "~/" + UP,
    "a variable": "$HOME/" + UP,
}
LINKED = [
    "/etc/shadow", "/proc/1/environ", "/proc/1/root/etc/shadow", "/proc/1/mem", "/proc/self/environ", "/.sandlot/agent",
    "/.sandlot/link/host/agent.sock", "/.sandlot/run", "/var/run/docker.sock", "/proc/kcore", "/proc/self/mem",
]  # fmt: skip
# Ways to say "show this file" that no list of forbidden words knows. {} is its path, quoted.
BYPASSES = {
    "plain": "cat {}",
    "quotes in the middle": "c''a\"\"t {}",
    "backslash": "c\\at {}",
    "variable": "x=c; y=at; $x$y {}",
    "separator": "cat${{IFS}}{}",
    "braces": "{{cat,{}}}",
    "base64": "$(echo Y2F0 | base64 -d) {}",
    "hex": "$(printf '\\143\\141\\164') {}",
    "reversed": "$(echo tac | rev) {}",
    "eval": "eval 'ca''t' {}",
    "redirect": "while read -r line || test -n \"$line\"; do echo \"$line\"; done <{}",
    "here document": "sh <<END\ncat {}\nEND",
    "here string": "bash -c 'bash <<<\"cat $0\"' {}",
    "builtin": "bash -c 'mapfile x <\"$0\"; echo \"${{x[@]}}\"' {}",
    "environment": "env -i sh -c 'cat \"$0\"' {}",
    "absolute program": "/bin/../bin/cat {}",
    "wildcards": "/b?n/c?t {}",
    "copy": "rm -f /tmp/copied; cp {} /tmp/copied; cat /tmp/copied",
    "link": "ln -sf {} /tmp/linked; cat /tmp/linked",
    "root": "cat /proc/self/root{}",
    "tar": "tar -cf - {} 2>/dev/null | tar -xOf -",
    "awk": "awk '{{print}}' {}",
    "sed": "sed -n p {}",
    "dd": "dd if={} 2>/dev/null",
    "find": "find {} -exec cat {{}} \\;",
    "xargs": "echo {} | xargs cat",
    "sort": "sort {}",
    "git": "git diff --no-index --no-color /dev/null {} | tail -n +6",
    "python": "python3 -c 'import sys; print(open(sys.argv[1]).read())' {}",
    "python by code": "python3 -c 'exec(bytes([112,114,105,110,116,40,111,112,101,110,40,39]).decode()+__import__(\"sys\").argv[1]+\"\\x27).read())\")' {}",
    "node": "node -e 'console.log(require(\"fs\").readFileSync(process.argv[1], \"utf8\"))' {}",
    "perl": "perl -pe 1 {}",
    "in the background": "(sleep 0.1; cat {}) & wait",
    "from a script": "echo 'cat \"$1\"' >/tmp/s; sh /tmp/s {}",
    "trap": "trap 'cat {}' EXIT",
    "alias of a function": "ls() {{ cat \"$@\"; }}; ls {}",
    "curl": "curl -s file://{}",
}  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sandbox(harness: Harness) -> AsyncIterator[Sandbox]:
    sandbox = await harness.create(Limits(cpus=2.0))
    yield sandbox
    await harness.destroy(sandbox.id)


async def read(sandbox: Sandbox, path: str) -> bytes | None:
    try:
        return await sandbox.files.read_bytes(path)
    except (FileProblem, InvalidRequest):
        return None


async def test_55_no_path_leads_to_the_host(watch: Watch, sandbox: Sandbox) -> None:
    """For reading, writing, listing, moving and removing alike."""
    target, files = str(watch.host_file), sandbox.files
    before = watch.host_file.stat()
    for name, climb in CLIMBS.items():
        path = climb + target.lstrip("/") if climb else target
        assert await read(sandbox, path) is None, name
        for call in (
            files.write(path, b"x", parents=False),
            files.list(str(Path(path).parent)),
            files.move(path, "moved"),
            files.remove(path),
        ):
            with pytest.raises((FileProblem, InvalidRequest)):
                await call
    assert await read(sandbox, f"nul\0{target}") is None
    after = watch.host_file.stat()
    assert (after.st_mtime_ns, after.st_size, after.st_ino) == (
        before.st_mtime_ns,
        before.st_size,
        before.st_ino,
    )
    assert not watch.canaries.out


async def test_56_links_lead_to_the_sandboxs_own(watch: Watch, sandbox: Sandbox) -> None:
    """What is downloaded is what the sandbox's user reads there, or nothing."""
    for target in (*LINKED, str(watch.host_file)):
        await sandbox.run(ExecRequest(argv=("ln", "-sfn", target, "link"), timeout_s=20))
        own = await sandbox.run(ExecRequest(command="head -c 100000 link", timeout_s=20))
        data = await read(sandbox, "link")
        if own.exit_code != 0:
            assert data is None, target
        elif data is not None and target != "/proc/self/environ":  # whose it is depends on who reads it
            assert data[:100_000] == own.stdout, target
        assert not (data or b"").startswith(b"root:"), target
    await sandbox.run(
        ExecRequest(command="rm -rf t; mkdir t; ln -s / t/root; ln -s /proc/1/root t/agent", timeout_s=20)
    )
    archive = b"".join([piece async for piece in sandbox.files.read_archive("t")])
    assert len(archive) < 100_000, "links are packed as links, and not followed"
    assert not watch.canaries.out


async def test_98_no_filter_is_needed(watch: Watch, sandbox: Sandbox) -> None:
    """Each way does show a file of the sandbox's own, and shows nothing of the host's or the agent's: no list of
    commands stands between them, and none has to.
    """
    own = new_word()
    await sandbox.files.write("own.txt", f"{own}\n".encode())
    shown = await all_ways(sandbox, "/workspace/own.txt")
    assert [name for name, said in shown.items() if own not in said] == [], "the attack itself is broken"
    for target in (str(watch.host_file), "/proc/1/environ"):
        assert "canary-" not in "".join((await all_ways(sandbox, target)).values())
    assert not watch.canaries.out


async def all_ways(sandbox: Sandbox, target: str) -> dict[str, str]:
    """What each way says of a file, all of them in one command: gVisor takes its time over starting one."""
    mark = secrets.token_hex(8)
    ways = [f"echo {mark}; bash -c {shlex.quote(way.format(target))} 2>&1" for way in BYPASSES.values()]
    result = await sandbox.run(ExecRequest(command="\n".join(ways), timeout_s=120))
    _, *said = result.stdout.decode("utf-8", "replace").split(f"{mark}\n")
    return dict(zip(BYPASSES, said, strict=True))

"""1 to 24, 35, 64: what a sandbox is, seen from inside and from the host, where tests/docker/test_walls.py does not look."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
import pytest_asyncio
import structlog

from sandlot.domain.environment import Tier
from sandlot.domain.execution import ExecRequest
from sandlot.providers.base import Sandbox
from sandlot.testing.provider_suite import Harness
from tests.attacks.canaries import Canaries, Watch, looked_through, new_word
from tests.docker.conftest import docker
from tests.docker.test_walls import REFUSED, all_of, refused, uid_of

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

HERE = Path(__file__).parent / "inside"
WALLS = Path(__file__).parents[1] / "docker" / "inside"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sandbox(harness: Harness) -> Sandbox:
    return await harness.create()


@pytest.fixture(scope="module")
def key() -> str:
    return new_word()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def seen(sandbox: Sandbox, key: str) -> dict[str, object]:
    """What every attack gave, tried once."""
    await sandbox.files.write("attacks.py", (WALLS / "attacks.py").read_bytes())
    await sandbox.files.write("posture.py", (HERE / "posture.py").read_bytes())
    result = await sandbox.run(ExecRequest(argv=("python3", "posture.py", key), timeout_s=120))
    assert result.exit_code == 0, result
    outcomes: dict[str, object] = json.loads(result.stdout)
    return outcomes


def first_process(sandbox: Sandbox) -> int:
    """On the host: the agent, or the kernel of gVisor that it runs on."""
    pid: int = docker("inspect", f"sandlot-{sandbox.id}")[0]["State"]["Pid"]
    return pid


async def test_01_commands_have_no_privilege(
    seen: dict[str, object], harness: Harness, sandbox: Sandbox
) -> None:
    status = seen["status"]
    assert isinstance(status, dict)
    capabilities = {value for name, value in status.items() if name.startswith("Cap")}
    assert capabilities == {"0000000000000000"}
    uid = str(uid_of(harness, sandbox))
    assert set(status["Uid"].split()) == set(status["Gid"].split()) == {uid}
    assert (seen["no new privileges"], seen["seccomp"]) == (1, 2)


async def test_01_gvisor_confines_itself(harness: Harness, sandbox: Sandbox) -> None:
    """What breaks out of gVisor's kernel is in a process of the host; runc's is looked at by test_walls.py."""
    if harness.environment.tier is Tier.RUNC:
        pytest.skip("there is no kernel of its own")
    status = Path(f"/proc/{first_process(sandbox)}/status").read_text()
    assert "Seccomp:\t2" in status


async def test_05_keys_stay_inside(seen: dict[str, object], harness: Harness, key: str) -> None:
    """gVisor has keyrings of its own; the host's know nothing of it."""
    if harness.environment.tier is Tier.RUNC:
        refused(seen, "key")
    keys = Path("/proc/keys")
    assert not keys.exists() or key not in keys.read_text()


async def test_07_32_bit_system_calls_are_refused(seen: dict[str, object]) -> None:
    refused(seen, *all_of(seen, "int80 "))


async def test_09_nothing_is_mounted_or_moved(seen: dict[str, object]) -> None:
    refused(seen, *all_of(seen, "mount ", "remount", "bind", "umount", "pivot_root", "chroot"))
    refused(seen, "fsopen", "open_tree", "move_mount")


async def test_15_kernel_files_are_empty_or_refused(seen: dict[str, object]) -> None:
    names = all_of(seen, "hidden ")
    assert {
        name: seen[name] for name in names if not (seen[name] == "ok " or REFUSED.match(str(seen[name])))
    } == {}


async def test_16_canaries_are_nowhere(watch: Watch, sandbox: Sandbox) -> None:
    """The hunt finds what is put before it, in a file and in a variable, and nothing else."""
    ours = [new_word(), new_word()]
    await sandbox.files.write("hunt.py", (HERE / "hunt.py").read_bytes())
    await sandbox.files.write("prey", ours[0].encode())
    request = ExecRequest(command="python3 hunt.py", env={"PREY": ours[1]}, timeout_s=120)
    result = await sandbox.run(request)
    assert result.exit_code == 0, result
    found = json.loads(result.stdout)
    assert {word for _, word in found} == set(ours), found
    assert not watch.canaries.out


async def test_what_comes_back_is_noticed(sandbox: Sandbox) -> None:
    """Of the canaries themselves: by an answer, by a file and by a log."""
    for way in ("output", "file", "log"):
        canaries = Canaries()
        word = canaries.plant(way)
        await sandbox.files.write("word", word.encode())
        with looked_through(canaries):
            assert not canaries.out
            if way == "output":
                await sandbox.run(ExecRequest(command="cat word"))
            elif way == "file":
                await sandbox.files.read_bytes("word")
            else:
                # Its own, whatever level and stream another test has chosen.
                logger = structlog.PrintLogger(io.StringIO())
                structlog.wrap_logger(logger, wrapper_class=structlog.BoundLogger).warning(
                    "event", thread=word
                )
        assert canaries.out == {way}
    await sandbox.files.remove("word")


def namespaces(tier: Tier, pid: int) -> dict[str, str]:
    """On gVisor commands have the processes and groups of its own kernel; where that one's process is does not matter."""
    kinds = ["mnt", "net", "ipc", "uts", *(["pid", "cgroup"] if tier is Tier.RUNC else ["user"])]
    return {kind: os.readlink(f"/proc/{pid}/ns/{kind}") for kind in kinds}


async def test_17_namespaces_are_not_the_hosts(harness: Harness, sandbox: Sandbox) -> None:
    """But for the user's on runc, which is the engine's to give (``userns-remap``); each sandbox has its own user."""
    tier = harness.environment.tier
    own = namespaces(tier, os.getpid())
    assert [
        kind for kind, link in namespaces(tier, first_process(sandbox)).items() if link == own[kind]
    ] == []


async def test_17_no_two_sandboxes_share_a_namespace(watch: Watch, sandbox: Sandbox) -> None:
    tier = watch.harness.environment.tier
    theirs, other = (namespaces(tier, first_process(of)) for of in (sandbox, watch.neighbour))
    assert [kind for kind, link in theirs.items() if link == other[kind]] == []


async def test_17_only_processes_of_the_sandbox_are_seen(sandbox: Sandbox) -> None:
    seen = await sandbox.run(
        ExecRequest(command="cat /proc/[0-9]*/comm | sort -u; echo $$ $(cat /proc/1/comm)")
    )
    *names, last = seen.stdout.decode().splitlines()
    assert set(names) <= {"agent", "bash", "cat", "sort"}
    pid, first = last.split()
    assert (int(pid) < 10_000, first) == (True, "agent")


async def test_35_the_agents_output_leads_nowhere(seen: dict[str, object], sandbox: Sandbox) -> None:
    """100 MB, if it is let: the engine keeps no log of a sandbox."""
    (container,) = docker("inspect", f"sandlot-{sandbox.id}")
    assert container["HostConfig"]["LogConfig"]["Type"] == "none"
    assert container["LogPath"] == ""
    all_of(seen, "agent's output ")
    root = docker("info", "--format", "{{.DockerRootDir}}").strip()
    folder = Path(root) / "containers" / container["Id"]
    assert folder.is_dir(), "the engine keeps what it has of a container elsewhere: look there"
    kept_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert kept_bytes < 1024 * 1024


async def test_64_the_agents_socket_cannot_be_replaced(
    seen: dict[str, object], harness: Harness, sandbox: Sandbox
) -> None:
    """The worker listens there and connects nowhere, so that a socket of the sandbox's own would get nothing."""
    refused(seen, *all_of(seen, "socket "))
    link = harness.provider._host.find(sandbox.id).path / "link"  # type: ignore[attr-defined]
    assert {entry.name for entry in link.rglob("*") if entry.is_socket()} == {"agent.sock"}
    assert not [entry for entry in link.rglob("*") if entry.is_symlink()]
    assert (await sandbox.run(ExecRequest(command="echo alive"))).stdout == b"alive\n"

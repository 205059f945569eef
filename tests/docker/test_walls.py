"""What a command can not do: to the agent, to the kernel, to the host. On both walls, from inside, as the sandbox's user."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from pathlib import Path

import pytest
import pytest_asyncio

from sandlot.domain.environment import Environment, Tier
from sandlot.domain.errors import TierMissing
from sandlot.domain.execution import ExecRequest
from sandlot.providers.base import Sandbox
from sandlot.providers.docker import engine_requirements
from sandlot.providers.docker.seccomp import seccomp_profile
from sandlot.testing.eventually import eventually
from sandlot.testing.provider_suite import Harness
from tests.docker.conftest import BASE, SLIM, docker, harness_for

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

INSIDE = Path(__file__).parent / "inside"
# 31 is SIGSYS, 11 what int 0x80 gives where there is none. An attack that broke by itself was not refused.
REFUSED = re.compile(r"errno |signal (11|31)$")

# System calls of kernels newer than the headers here may be.
NEWER = {"cachestat": 451, "fchmodat2": 452, "map_shadow_stack": 453, "futex_wake": 454, "futex_wait": 455,
         "futex_requeue": 456, "statmount": 457, "listmount": 458, "mseal": 462}  # fmt: skip
# uretprobe and uprobe: the kernel lets no filter see them; they answer only to its own trampolines.
NOT_FILTERED = {335, 336}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def seen(sandbox: Sandbox) -> dict[str, object]:
    """What every attack gave, tried once."""
    await sandbox.files.write("attacks.py", (INSIDE / "attacks.py").read_bytes())
    result = await sandbox.run(ExecRequest(command="python3 attacks.py", timeout_s=120))
    assert result.exit_code == 0, result
    outcomes: dict[str, object] = json.loads(result.stdout)
    return outcomes


def refused(seen: dict[str, object], *names: str) -> None:
    allowed = {name: seen[name] for name in names if not REFUSED.match(str(seen[name]))}
    assert not allowed


def all_of(seen: dict[str, object], *beginnings: str) -> list[str]:
    """The attacks whose names begin so; none would be refused in vain."""
    names = [name for name in seen if name.startswith(beginnings)]
    assert all(any(name.startswith(beginning) for name in names) for beginning in beginnings)
    return names


async def run(sandbox: Sandbox, command: str, timeout_s: float = 30) -> str:
    result = await sandbox.run(ExecRequest(command=command, timeout_s=timeout_s))
    return result.output.decode("utf-8", "replace")


async def test_agent_survives_every_signal(seen: dict[str, object], sandbox: Sandbox) -> None:
    assert {seen[f"signal {number}"] for number in range(1, 65)} == {"errno EPERM"}
    assert await run(sandbox, "echo alive") == "alive\n"


async def test_agent_cannot_be_read_traced_or_impersonated(seen: dict[str, object], harness: Harness) -> None:
    refused(
        seen,
        "ptrace 1",
        "process_vm_readv 1",
        "read /proc/1/mem",
        "write /proc/1/mem",
        "write /proc/1/oom_score_adj",
    )
    refused(
        seen, "read /proc/1/root/etc/shadow", "connect agent", "list /.sandlot/link", "list /.sandlot/run"
    )
    refused(seen, "write /.sandlot/agent", "create /.sandlot/run/planted", "create /.sandlot/link/planted")
    # A second agent, started by the user, has no way to the socket and refuses to run without its walls.
    assert seen["run agent as init"] == "ok sandlot-agent: capset: operation not permitted\n"
    if harness.environment.tier is Tier.RUNC:
        refused(seen, "read /proc/1/environ", "list /proc/1/fd", "read /proc/1/maps")


async def test_agent_environment_and_command_line_hold_no_secret(
    seen: dict[str, object], harness: Harness, sandbox: Sandbox
) -> None:
    """On gVisor /proc/1/environ can be read in spite of everything: so nothing is in it."""
    directory = harness.provider._host.find(sandbox.id)  # type: ignore[attr-defined]
    secret = directory.secret.hex()
    everything = json.dumps(seen)
    assert secret not in everything
    assert secret not in json.dumps(docker("inspect", f"sandlot-{sandbox.id}"))
    assert str(seen["text /proc/1/cmdline"]).startswith("ok /.sandlot/agent\x00init")


async def test_kernel_surface(seen: dict[str, object], harness: Harness) -> None:
    if seen["machine"] != "x86_64":
        pytest.skip("the numbers in attacks.py are those of x86_64")
    calls = all_of(seen, "syscall ")
    if harness.environment.tier is Tier.RUNSC:
        # gVisor has a kernel of its own: what it allows there is done to that kernel. These would matter even so.
        harmless = {"ptrace", "process_vm_readv", "process_vm_writev", "personality", "io_setup", "io_submit", "vmsplice",
                    "modify_ldt", "request_key", "add_key", "keyctl", "chroot", "kcmp",
                    "remap_file_pages", "lookup_dcookie"}  # fmt: skip
        calls = [name for name in calls if name.removeprefix("syscall ") not in harmless]
    refused(seen, *calls)
    refused(seen, "unshare user", "clone user", "drop groups", "ptrace 1", "process_vm_readv 1")
    if harness.environment.tier is Tier.RUNC:
        refused(seen, "int 0x80", "tiocsti")


async def test_sockets(seen: dict[str, object], harness: Harness) -> None:
    families = all_of(seen, "socket ")
    refused(seen, *families)
    if harness.environment.tier is Tier.RUNC:
        # Another error would be the kernel's own, given after it has looked for a module to load.
        assert {seen[name] for name in families} == {"errno EPERM"}
    refused(seen, "connect 2375", "connect 2376", "route out")
    assert seen["sockets"] == []
    assert seen["interfaces"] == ["lo"]


async def test_devices_and_kernel_files(seen: dict[str, object]) -> None:
    refused(seen, "mknod device", *all_of(seen, "read /dev/"))
    for name in ("read /proc/kcore", "read /proc/keys", "read /proc/timer_list", "read /proc/sched_debug"):
        assert str(seen[name]) == "ok " or REFUSED.match(str(seen[name])), name
    refused(seen, *all_of(seen, "write /proc/", "write /sys/"))


def uid_of(harness: Harness, sandbox: Sandbox) -> int:
    found: int = harness.provider._host.find(sandbox.id).uid  # type: ignore[attr-defined]
    return found


async def test_read_only_system(seen: dict[str, object], harness: Harness, sandbox: Sandbox) -> None:
    refused(seen, *all_of(seen, "create "), "write /etc/passwd", "rename workspace")
    assert seen["copied root shell"] == f"ok {uid_of(harness, sandbox)}"


async def test_no_setuid_file_anywhere(sandbox: Sandbox) -> None:
    assert await run(sandbox, "find / -xdev -perm /6000 -type f 2>/dev/null", 60) == ""


async def test_nothing_of_the_host_is_told(seen: dict[str, object]) -> None:
    told = json.dumps([value for name, value in seen.items() if name.startswith("text ")])
    assert socket.gethostname() not in told
    assert "sandbox" in str(seen["text /etc/hostname"])


async def test_capabilities_seen_from_the_host(sandbox: Sandbox, harness: Harness) -> None:
    if harness.environment.tier is Tier.RUNSC:
        pytest.skip("gVisor's processes are not the host's; the suite reads the same from inside")
    execution = await sandbox.start(ExecRequest(command="exec sleep 120.25"))
    agent = docker("inspect", f"sandlot-{sandbox.id}")[0]["State"]["Pid"]

    def sleeping() -> list[str]:
        texts = [_text(status) for status in Path("/proc").glob("[0-9]*/status")]
        return [text for text in texts if f"\nPPid:\t{agent}\n" in text and "Name:\tsleep" in text]

    await eventually(sleeping, 20, "it has become sleep")
    command = sleeping()[0]
    uid = uid_of(harness, sandbox)
    for line in ("NoNewPrivs:\t1", "Seccomp:\t2", f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}", "CapEff:\t0000000000000000",
                 "CapPrm:\t0000000000000000", "CapBnd:\t0000000000000000", "CapAmb:\t0000000000000000"):  # fmt: skip
        assert line in command, line
    status = Path(f"/proc/{agent}/status").read_text()
    # KILL, SETGID, SETUID, and nothing to regain more from.
    assert "CapEff:\t00000000000000e0" in status
    assert "CapBnd:\t0000000000000000" in status
    for kind in ("pid", "mnt", "net", "ipc", "uts", "cgroup"):
        assert os.readlink(f"/proc/{agent}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}"), kind
    agent_score, command_score = (
        int(Path(f"/proc/{pid}/oom_score_adj").read_text())
        for pid in (agent, re.search(r"\nPid:\t(\d+)", command).group(1))  # type: ignore[union-attr]
    )
    assert agent_score < command_score, "the kernel must take commands first"
    await sandbox.kill(execution.exec_id)
    await execution.result()


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


async def test_every_denied_system_call_is_denied(sandbox: Sandbox, harness: Harness) -> None:
    """0 to 480: what the profile does not name answers EPERM (or does not exist), seen from inside."""
    if harness.environment.tier is Tier.RUNSC:
        pytest.skip("runsc applies no seccomp profile to the inside; its own kernel answers")
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip("no kernel headers here to name the system calls")
    numbers = {m[1]: int(m[2]) for m in re.finditer(r"#define __NR_(\w+) (\d+)", header.read_text())} | NEWER
    allowed = {
        name
        for rule in seccomp_profile("x86_64")["syscalls"]
        if rule["action"] == "SCMP_ACT_ALLOW"
        for name in rule["names"]
    }
    allowed_numbers = {number for name, number in numbers.items() if name in allowed}
    denied = sorted(set(range(481)) - allowed_numbers - NOT_FILTERED)
    script = (INSIDE / "deny.py").read_text().replace("DENIED", repr(denied))
    await sandbox.files.write("deny.py", script.encode())
    result = await sandbox.run(ExecRequest(command="python3 deny.py", timeout_s=120))
    assert result.exit_code == 0, result
    answers = json.loads(result.stdout)
    assert len(answers) == len(denied) > 100
    wrong = {number: answer for number, answer in answers.items() if answer not in ("EPERM", "ENOSYS")}
    assert not wrong


async def test_segfaults_leave_nothing_on_the_host(sandbox: Sandbox) -> None:
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    before = set(os.listdir("/"))
    await run(sandbox, "for i in $(seq 30); do sh -c 'kill -SEGV $$' 2>/dev/null; done; ls core* 2>/dev/null")
    assert set(os.listdir("/")) == before, pattern
    assert await run(sandbox, "ls /workspace | grep -c core || :") == "0\n"


async def test_another_execs_exit_code_cannot_be_forged(sandbox: Sandbox) -> None:
    victim = await sandbox.start(ExecRequest(command="sleep 1; exit 7"))
    await run(
        sandbox, "for p in /proc/[0-9]*; do echo 0 >$p/fd/1; printf '0 /\\0' >$p/fd/2; done 2>/dev/null; true"
    )
    assert (await victim.result()).exit_code == 7


@pytest.mark.parametrize("image", [SLIM], ids=["slim"])
async def test_walls_of_another_image(image: str) -> None:
    async with harness_for(Tier.RUNC, image) as harness:
        sandbox = await harness.create()
        for number in (9, 15, 19, 11):
            assert "not permitted" in await run(sandbox, f"kill -{number} 1")
        assert "ermission denied" in await run(sandbox, "ls /.sandlot/link")
        assert await run(sandbox, "find / -xdev -perm /6000 -type f 2>/dev/null", 60) == ""


async def test_missing_tier_is_an_error(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(engine_requirements.RUNTIMES, harness.environment.tier, "no-such-runtime")
    environment = Environment(name="absent", image=BASE, tier=harness.environment.tier)
    with pytest.raises(TierMissing, match="no-such-runtime"):
        await harness.provider.prepare(environment)


async def test_old_engines_are_warned_of(harness: Harness) -> None:
    warnings = await harness.provider.warnings()  # type: ignore[attr-defined]
    version = subprocess.run(
        ["/usr/bin/docker", "version", "--format", "{{.Server.Version}}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    old = tuple(int(part) for part in re.findall(r"\d+", version)[:3]) < (29, 5, 1)
    assert any("Engine" in warning or "engine" in warning for warning in warnings) == old

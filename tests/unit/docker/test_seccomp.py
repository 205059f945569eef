"""The seccomp profile: each difference from Docker's default, asked of a model of the kernel."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.domain.errors import Unsupported
from sandlot.providers.docker.seccomp import (
    _check_duplicates,
    load_source,
    seccomp_json,
    seccomp_profile,
)

PROFILE = seccomp_profile("x86_64")
ALLOW, EPERM, ENOSYS = 0, 1, 38


def answer(name: str, *arguments: int) -> int:
    """What the kernel would answer: 0 for "let it through", else the errno."""
    for rule in PROFILE["syscalls"]:
        if name in rule["names"] and all(_holds(condition, arguments) for condition in rule.get("args", ())):
            return ALLOW if rule["action"] == "SCMP_ACT_ALLOW" else int(rule["errnoRet"])
    return int(PROFILE["defaultErrnoRet"])


def _holds(condition: dict[str, Any], arguments: tuple[int, ...]) -> bool:
    value = arguments[condition["index"]]
    if condition["op"] == "SCMP_CMP_EQ":
        return bool(value == condition["value"])
    assert condition["op"] == "SCMP_CMP_MASKED_EQ"
    return bool(value & condition["value"] == condition["valueTwo"])


@pytest.mark.parametrize(
    "name",
    [
        *("ptrace", "process_vm_readv", "process_vm_writev", "vmsplice", "memfd_secret", "remap_file_pages"),
        *("modify_ldt", "fanotify_mark", "fanotify_init", "adjtimex", "clock_adjtime", "name_to_handle_at"),
        *(
            "open_by_handle_at",
            "io_setup",
            "io_submit",
            "io_uring_setup",
            "io_uring_enter",
            "io_uring_register",
        ),
        *("socketcall", "add_key", "keyctl", "request_key", "bpf", "perf_event_open", "userfaultfd", "kcmp"),
        *("unshare", "setns", "mount", "umount2", "fsopen", "move_mount", "open_tree", "mount_setattr"),
        *("pivot_root", "chroot", "init_module", "finit_module", "kexec_load", "reboot", "swapon", "syslog"),
        *("pidfd_getfd", "process_madvise", "quotactl", "sethostname", "settimeofday", "iopl", "ioperm"),
        *("get_mempolicy", "set_mempolicy", "mbind", "move_pages", "acct", "lookup_dcookie", "vhangup"),
    ],
)
def test_refused(name: str) -> None:
    assert answer(name) == EPERM


@pytest.mark.parametrize(
    "name",
    [
        *(
            "landlock_create_ruleset",
            "seccomp",
            "memfd_create",
            "openat2",
            "mknod",
            "mknodat",
            "inotify_init1",
        ),
        *(
            "rseq",
            "pidfd_open",
            "pidfd_send_signal",
            "execve",
            "prctl",
            "setresuid",
            "setgroups",
            "prlimit64",
        ),
        *(
            "arch_prctl",
            "futex",
            "epoll_pwait2",
            "close_range",
            "faccessat2",
            "fchmodat2",
            "statx",
            "getrandom",
        ),
    ],
)
def test_kept(name: str) -> None:
    assert answer(name) == ALLOW


def test_what_was_removed_is_nowhere_allowed() -> None:
    named = {name for rule in PROFILE["syscalls"] for name in rule["names"]}
    removed = {name for table in load_source()["removed"] for name in table["syscalls"]}
    assert not named & removed


def test_every_group_gives_its_reason() -> None:
    source = load_source()
    for kind in ("allow", "guarded", "refused", "removed"):
        assert all(table["why"].endswith(".") for table in source[kind])


def test_a_call_named_twice_is_noticed() -> None:
    source = load_source()
    source["removed"].append({"group": "mistake", "why": "", "syscalls": ["read"]})
    with pytest.raises(ValueError, match="names read in both 'files' and 'mistake'"):
        _check_duplicates(source)


def test_clone3_says_that_it_does_not_exist() -> None:
    assert answer("clone3") == ENOSYS


@pytest.mark.parametrize("flag", [0x00020000, *(1 << bit for bit in range(25, 31))])
def test_clone_makes_no_namespace(flag: int) -> None:
    assert answer("clone", flag | 17) == EPERM
    assert answer("clone", 0x003D0F00) == ALLOW  # a thread


@pytest.mark.parametrize(
    ("family", "kind", "protocol", "expected"),
    [
        (1, 1, 0, ALLOW),
        (1, 5, 0, ALLOW),  # AF_UNIX has packets in sequence
        (2, 1, 0, ALLOW),
        (2, 2, 0, ALLOW),
        (2, 0x80801, 0, ALLOW),  # SOCK_CLOEXEC and SOCK_NONBLOCK
        (2, 1, 6, ALLOW),
        (2, 2, 17, ALLOW),
        (2, 2, 1, ALLOW),  # ping
        (10, 1, 0, ALLOW),
        (10, 2, 0, ALLOW),
        (10, 2, 58, ALLOW),
        (16, 3, 0, ALLOW),
        (16, 3, 9, EPERM),  # NETLINK_AUDIT
        (16, 3, 12, EPERM),  # NETLINK_NETFILTER
        (2, 1, 132, EPERM),  # SCTP
        (2, 5, 0, EPERM),  # SCTP's type
        (2, 6, 33, EPERM),  # DCCP
        (2, 6, 0, EPERM),  # DCCP as the only protocol of its type
        (10, 0x80806, 0, EPERM),
        (2, 3, 0, EPERM),  # raw
        (2, 3, 1, EPERM),
        (2, 1, 262, EPERM),  # MPTCP
        (17, 3, 0, EPERM),  # AF_PACKET
        (31, 3, 0, EPERM),  # AF_BLUETOOTH
        (38, 5, 0, EPERM),  # AF_ALG
        (40, 1, 0, EPERM),  # AF_VSOCK
        ((1 << 32) | 40, 1, 0, EPERM),
    ],
)
def test_socket_families(family: int, kind: int, protocol: int, expected: int) -> None:
    assert answer("socket", family, kind, protocol) == expected


def test_socket_pairs_are_unix() -> None:
    assert answer("socketpair", 1, 1, 0) == ALLOW
    assert answer("socketpair", 30, 1, 0) == EPERM


CLONES = {0x40049409, 0x4020940D, 0xC0189436}  # copies of files that share blocks


def may_ask(request: int) -> bool:
    low = request & 0xFFFFFFFF
    return low in CLONES or (low != 0x5412 and low & 0xFF00 != 0x9400)


@given(st.integers(0, 2**64 - 1) | st.integers(0, 2**16).map(lambda low: 0x50000000 | low))
def test_every_ioctl_but_typing_into_terminals_and_subvolumes(request: int) -> None:
    assert answer("ioctl", 0, request) == (ALLOW if may_ask(request) else EPERM)


@given(st.integers(0, 2**32 - 1), st.integers(0, 255))
def test_high_bits_let_no_ioctl_through(high: int, number: int) -> None:
    assert answer("ioctl", 0, (high << 32) | 0x5412) == EPERM
    assert answer("ioctl", 0, (high << 32) | 0x50009400 | number) == EPERM


@pytest.mark.parametrize("request_number", [0x5000940E, 0x50009401, 0x50009417, 0x50009418, 0x4008941A])
def test_no_subvolumes(request_number: int) -> None:
    assert answer("ioctl", 0, request_number) == EPERM


@pytest.mark.parametrize("request_number", sorted(CLONES))
def test_copies_that_share_blocks(request_number: int) -> None:
    assert answer("ioctl", 0, request_number) == ALLOW
    assert answer("ioctl", 0, 0xFFFFFFFF << 32 | request_number) == ALLOW  # C libraries extend the sign


def test_personality() -> None:
    assert [answer("personality", p) for p in (0, 0xFFFFFFFF)] == [ALLOW, ALLOW]
    assert {answer("personality", p) for p in (8, 0x20000, 0x20008, 0x40000)} == {EPERM}


def test_native_architecture_only() -> None:
    assert seccomp_profile("x86_64")["architectures"] == ["SCMP_ARCH_X86_64"]
    arm = seccomp_profile("aarch64")
    assert arm["architectures"] == ["SCMP_ARCH_AARCH64"]
    assert not any("arch_prctl" in rule["names"] for rule in arm["syscalls"])
    assert "archMap" not in arm
    with pytest.raises(Unsupported):
        seccomp_profile("mips")


def test_json_is_stable() -> None:
    assert json.loads(seccomp_json("x86_64")) == PROFILE
    assert seccomp_json("x86_64") is seccomp_json("x86_64")

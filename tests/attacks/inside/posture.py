"""Runs inside a sandbox beside attacks.py: what that one does not try, with arguments that would do harm."""

import ctypes
import json
import mmap
import os
import struct
import sys

from attacks import attempt, call, create, libc

PR_GET_SECCOMP, PR_GET_NO_NEW_PRIVS = 21, 39
MS_REMOUNT, MS_BIND, MNT_DETACH, OPEN_TREE_CLONE, AT_FDCWD = 32, 4096, 2, 1, -100
I386 = {"getpid": 20, "mount": 21, "chroot": 61, "ptrace": 26, "setuid": 23, "unshare": 310, "socket": 359}
# What the engine hides, and what gVisor does not have.
HIDDEN = ("/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats",
          "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap", "/proc/vmcore", "/proc/kmsg")  # fmt: skip


def text(value):
    return ctypes.c_char_p(value)


def by_int80(number, *arguments):
    """A 32-bit system call from a 64-bit process: rbx is the caller's, so it is kept."""
    moves = zip((b"\xb8", b"\xbb", b"\xb9", b"\xba"), (I386[number], *arguments), strict=False)
    code = b"\x53" + b"".join(move + struct.pack("<I", value) for move, value in moves) + b"\xcd\x80\x5b\xc3"

    def action():
        area = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        area.write(code)
        answer = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(area)))()
        if answer < 0:
            raise OSError(-answer, "")
        return f"ok {answer}"

    return action


def shown(path):
    """What a path gives away: names in it, or bytes of it."""

    def action():
        if os.path.isdir(path):
            return "ok " + " ".join(os.listdir(path))
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        return "ok " + os.read(descriptor, 100).decode("latin-1")

    return action


def prctl(option):
    return libc.prctl(option, 0, 0, 0, 0)


def to_output_of_agent(descriptor):
    def action():
        with open(f"/proc/1/fd/{descriptor}", "wb", buffering=0) as output:
            for _ in range(100):
                output.write(b"x" * (1 << 20))
        return "ok"

    return action


def main():
    os.makedirs("/tmp/there", exist_ok=True)
    with open("/proc/self/status") as file:
        status = dict(line.split(":\t", 1) for line in file.read().splitlines() if ":\t" in line)
    out = {
        "status": {name: value.strip() for name, value in status.items()},
        "no new privileges": prctl(PR_GET_NO_NEW_PRIVS),
        "seccomp": prctl(PR_GET_SECCOMP),
    }
    out["mount tmpfs"] = attempt(lambda: call(165, text(b"none"), text(b"/tmp/there"), text(b"tmpfs"), 0, 0))
    out["mount proc"] = attempt(lambda: call(165, text(b"proc"), text(b"/tmp/there"), text(b"proc"), 0, 0))
    out["bind"] = attempt(lambda: call(165, text(b"/etc"), text(b"/tmp/there"), 0, MS_BIND, 0))
    out["remount"] = attempt(lambda: call(165, 0, text(b"/"), 0, MS_REMOUNT, 0))
    out["remount bind"] = attempt(lambda: call(165, 0, text(b"/"), 0, MS_REMOUNT | MS_BIND, 0))
    out["umount"] = attempt(lambda: call(166, text(b"/tmp"), MNT_DETACH))
    out["pivot_root"] = attempt(lambda: call(155, text(b"/tmp"), text(b"/tmp/there")))
    out["chroot"] = attempt(lambda: os.chroot("/tmp") or "ok")
    out["fsopen"] = attempt(lambda: call(430, text(b"tmpfs"), 0))
    out["open_tree"] = attempt(lambda: call(428, AT_FDCWD, text(b"/"), OPEN_TREE_CLONE))
    out["move_mount"] = attempt(lambda: call(429, AT_FDCWD, text(b"/tmp"), AT_FDCWD, text(b"/tmp/there"), 0))
    for name, family in (("vsock", 40), ("alg", 38), ("packet", 17), ("bluetooth", 31)):
        out[f"int80 socket {name}"] = attempt(by_int80("socket", family, 3, 0))
    out["int80 setuid"] = attempt(by_int80("setuid", 0))
    out["int80 unshare"] = attempt(by_int80("unshare", 0x10000000))
    out["int80 ptrace"] = attempt(by_int80("ptrace", 16, 1, 0))
    out["key"] = attempt(lambda: call(248, text(b"user"), text(sys.argv[1].encode()), text(b"x"), 1, -5))
    for path in HIDDEN:
        out[f"hidden {path}"] = attempt(shown(path))
    for descriptor in (0, 1, 2):
        out[f"agent's output {descriptor}"] = attempt(to_output_of_agent(descriptor))
    link = "/.sandlot/link/host"
    out["socket unlink"] = attempt(lambda: os.unlink(f"{link}/agent.sock") or "ok")
    out["socket replace"] = attempt(lambda: os.symlink("/tmp/mine.sock", f"{link}/agent.sock") or "ok")
    out["socket rename"] = attempt(lambda: os.rename(f"{link}/agent.sock", f"{link}/other.sock") or "ok")
    out["socket beside"] = attempt(create(f"{link}/planted"))
    out["socket folder"] = attempt(lambda: os.rename("/.sandlot/link", "/.sandlot/other") or "ok")
    print(json.dumps(out))


main()

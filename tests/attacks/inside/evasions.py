"""Runs inside a sandbox: goes on running in one of the ways that hide a process from whoever would end it."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

libc = ctypes.CDLL(None)
BEGUN = b"begun\n"  # printed before it hides
PTRACE_TRACEME = 0
EXIT = {"x86_64": 60, "aarch64": 93}[os.uname().machine]  # ends one thread, not the process


def forever():
    while True:
        time.sleep(60)


def spin():
    while True:
        pass


def exit_first_thread(work=forever):
    threading.Thread(target=work).start()
    libc.syscall(EXIT, 0)


def double_fork(then):
    if os.fork():
        forever()
    os.setsid()
    if os.fork():
        os._exit(0)
    then()


def ignore_signals():
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    forever()


def stop_itself():
    os.kill(os.getpid(), signal.SIGSTOP)
    forever()


def vfork():
    """The parent waits in the kernel for a child that never execs."""
    if libc.vfork() == 0:
        forever()
    forever()


def zombies():
    for _ in range(50):
        if os.fork() == 0:
            os._exit(0)
    forever()


def keep_forking():
    """Whoever lists processes sees one that is gone by the time it is signalled."""
    if os.fork():
        forever()
    while True:
        if os.fork():
            os._exit(0)
        os.setsid()


def exec_forever():
    os.execv(sys.executable, [sys.executable, __file__, "exec forever", "again"])


def traced():
    """Stopped for a tracer that never lets it go on; a signal is held back until it does."""
    if os.fork() == 0:
        libc.ptrace(PTRACE_TRACEME, 0, 0, 0)
        stop_itself()
    forever()


def nohup():
    """As users do it: a background job of a shell that is gone, deaf to the hangup, in a session of its own."""
    subprocess.run(["sh", "-c", "nohup setsid sleep 600 >/dev/null 2>&1 &"], check=True)
    forever()


WAYS = {
    "first thread exits": exit_first_thread,
    "first thread exits, another spins": lambda: exit_first_thread(spin),
    "first thread exits after two forks": lambda: double_fork(exit_first_thread),
    "two forks": lambda: double_fork(forever),
    "two forks, signals ignored": lambda: double_fork(ignore_signals),
    "stops itself": lambda: double_fork(stop_itself),
    "vfork": vfork,
    "zombies": zombies,
    "keeps forking": keep_forking,
    "exec forever": exec_forever,
    "traced and stopped": lambda: double_fork(traced),
    "nohup": nohup,
}

if __name__ == "__main__":
    if len(sys.argv) == 2:
        os.write(1, BEGUN)
    WAYS[sys.argv[1]]()

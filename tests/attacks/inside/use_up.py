"""Runs inside a sandbox: takes as much of one kind as is to be had, says how much it was and what stopped it, keeps it."""

import array
import errno
import os
import select
import socket
import sys
import time

held = []
MIB = b"x" * (1 << 20)


def pipe():
    held.append(os.pipe())


def epoll():
    if not held:
        held.append(os.pipe())
    poller = select.epoll()
    poller.register(held[0][0], select.EPOLLIN)
    held.append(poller)


def unix():
    """Descriptors on their way through a socket that nobody reads: they count for the user, not for the process."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    pair[0].setblocking(False)
    held.append(pair)
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [pair[1].fileno()] * 250))
    pair[0].sendmsg([b"x"], [rights])


def shm():
    with open(f"/dev/shm/{len(held)}", "wb", buffering=0) as file:
        if file.write(MIB) < len(MIB):
            raise OSError(errno.ENOSPC, "")
    held.append(None)


def tmp():
    with open(f"/tmp/{len(held)}", "wb", buffering=0) as file:
        if file.write(MIB) < len(MIB):
            raise OSError(errno.ENOSPC, "")
    held.append(None)


def names():
    """Empty files: what a tmpfs keeps of each is not in its size."""
    os.close(os.open(f"/tmp/name-{len(held)}", os.O_CREAT | os.O_WRONLY))
    held.append(None)


def descriptors():
    held.append(os.open("/dev/null", os.O_RDONLY))


def processes_full_of_descriptors():
    """A child for each, which has as many as it may and says what stopped it."""
    ready, say = os.pipe()
    if os.fork() == 0:
        try:
            while True:
                os.open("/dev/null", os.O_RDONLY)
        except OSError as error:
            os.write(say, errno.errorcode[error.errno].encode())
            time.sleep(600)
    os.close(say)
    why = os.read(ready, 100).decode() or "ECHILD"
    os.close(ready)
    if why != "EMFILE":  # it is gone, or is short of something before it is full
        raise OSError(getattr(errno, why), "")
    held.append(None)


KINDS = {
    "pipe": pipe,
    "epoll": epoll,
    "unix": unix,
    "shm": shm,
    "tmp": tmp,
    "names": names,
    "descriptors": descriptors,
    "processes full of descriptors": processes_full_of_descriptors,
}

# Each child is stopped by its own bound, and nothing stops the children.
FULL_CHILDREN = 20

if __name__ == "__main__":
    take, why = KINDS[sys.argv[1]], "enough"
    at_most = FULL_CHILDREN if take is processes_full_of_descriptors else 100_000
    try:
        while len(held) < at_most:
            take()
    except OSError as error:
        why = errno.errorcode[error.errno]
    print(len(held), why, flush=True)
    time.sleep(600)

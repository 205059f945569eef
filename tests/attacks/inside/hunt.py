"""Runs inside a sandbox, as its user: looks for canaries wherever something can be read, and prints each with its place.

A canary is a word that begins with ``canary-``, in a content or in a name.
"""

import json
import os
import re
import stat

WORD = re.compile(rb"canary-[0-9a-f]{32}")
MOST_BYTES = 1 << 20
# The image's own programs, and what is looked at by name below.
PASSED_OVER = ("/usr", "/proc", "/sys")
OF_A_PROCESS = (
    "environ",
    "cmdline",
    "comm",
    "mountinfo",
    "mounts",
    "cgroup",
    "status",
    "maps",
    "net/unix",
    "net/tcp",
)
OF_THE_KERNEL = (
    "sysvipc/shm",
    "sysvipc/msg",
    "sysvipc/sem",
    "keys",
    "key-users",
    "cmdline",
    "mdstat",
    "net/unix",
    "locks",
)
found = []


def look(place, data):
    for word in WORD.findall(data):
        found.append([place, word.decode()])


def look_into(path):
    try:
        # A FIFO or a device would keep us waiting.
        if not stat.S_ISREG(os.stat(path).st_mode):
            return
        with open(path, "rb", buffering=0) as file:
            look(path, file.read(MOST_BYTES) or b"")
    except (OSError, ValueError):
        pass


def look_below(folder):
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if os.path.join(place, name) not in PASSED_OVER]
        for name in (*folders, *names):
            look(place, os.fsencode(name))
        for name in names:
            look_into(os.path.join(place, name))


def main():
    look_below("/")
    for name in OF_THE_KERNEL:
        look_into(f"/proc/{name}")
    for process in filter(str.isdigit, os.listdir("/proc")):
        for name in OF_A_PROCESS:
            look_into(f"/proc/{process}/{name}")
        for way in ("root", "cwd", "fd"):
            try:
                for name in os.listdir(f"/proc/{process}/{way}"):
                    look(f"/proc/{process}/{way}", os.fsencode(name))
                    look_into(f"/proc/{process}/{way}/{name}")
            except OSError:
                pass
    for way in ("/proc/1/root", "/proc/1/cwd/.."):  # the agent's own view, if it were to be had
        look_below(way)
    print(json.dumps(found))


main()

"""Runs inside a sandbox: tries to get hold of each helper's memory before it can hide it, and says how often it did.

It ends when there is a file ``over``, or after so many seconds.
"""

import os
import sys
import time

seen, held, tried = {str(os.getpid())}, [], 0
print("ready", flush=True)
deadline = time.monotonic() + float(sys.argv[1])
while time.monotonic() < deadline and not os.path.exists("over"):
    for pid in os.listdir("/proc"):
        if not pid.isdigit() or pid in seen:
            continue
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if not {b"files", b"net"} & set(file.read().split(b"\0")[:2]):
                    continue
        except OSError:
            continue
        seen.add(pid)
        tried += 1
        for _ in range(200):
            try:
                held.append(os.open(f"/proc/{pid}/mem", os.O_RDWR))
                break
            except OSError:
                pass
print(tried, len(held), flush=True)

"""Runs inside a sandbox: connects to the proxy many times at once, and holds on to all of it until it is killed.

Arguments: how many, and what for. ``drip`` sends a head that never ends, byte by byte. Anything else is a host and a port,
for a tunnel.
"""

import contextlib
import os
import resource
import socket
import sys
import time

COUNT, TARGET = int(sys.argv[1]), sys.argv[2]
EACH = 2500  # of one process; it may have 4096 files
DRIP = TARGET == "drip"
HEAD = (
    b"GET http://a.test/ HTTP/1.1\r\nX: "
    if DRIP
    else f"CONNECT {TARGET} HTTP/1.1\r\nHost: {TARGET}\r\n\r\n".encode()
)

for _ in range(1, COUNT // EACH):
    if os.fork() == 0:
        break
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
connections = [socket.socket() for _ in range(min(COUNT, EACH))]
for connection in connections:
    connection.setblocking(False)
    connection.connect_ex(("127.0.0.1", 3128))
print("begun", flush=True)
unsaid = set(connections)
while True:
    for connection in list(unsaid):
        with contextlib.suppress(OSError):  # it is not connected yet, or was ended
            connection.send(HEAD)
            unsaid.discard(connection)
    if DRIP:
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.send(b"x")
    time.sleep(0.5)

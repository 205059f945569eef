"""Runs in a sandbox through the proxy, and on the host without one. Standard library only.

``program.py download URL`` prints megabytes per second. ``program.py requests URL COUNT`` prints the milliseconds of
each of COUNT small requests, each on a connection of its own.
"""

import http.client
import os
import sys
import time
from urllib.parse import urlsplit

PAUSE_S = 0.05  # as an agent's program does: requests back to back would measure the sandbox's CPU limit
BUFFER = memoryview(bytearray(1 << 20))


def get(url: str, *, tunnel: bool) -> int:
    """Returns the size of the answer."""
    there = urlsplit(url)
    proxy = urlsplit(os.environ.get("http_proxy", ""))
    connection = http.client.HTTPConnection(proxy.netloc or there.netloc, timeout=60)
    target = there.path
    if proxy.netloc and tunnel:
        connection.set_tunnel(there.netloc)
    elif proxy.netloc:
        target = url
    connection.request("GET", target)
    answer = connection.getresponse()
    if answer.status != 200:
        sys.exit(f"{answer.status} {answer.read(1000)!r}")
    size = 0
    while got := answer.readinto(BUFFER):
        size += got
    connection.close()
    return size


def main(what: str, how: str, url: str, count: int) -> None:
    for number in range(count):
        if number and what == "requests":
            time.sleep(PAUSE_S)
        began = time.perf_counter()
        size = get(url, tunnel=how == "tunnel")
        took = time.perf_counter() - began
        print(size / took / 1e6 if what == "download" else took * 1000, flush=True)


main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))

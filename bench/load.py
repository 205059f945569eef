"""Sends a burst of 1,000 creates over HTTP, 50 at a time, to a pool of 1,000 warm sandboxes.

A separate process sends the load. Each create is timed from the request to the response.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from urllib.parse import urlsplit

from bench.rig import p50, p99, progress
from bench.server import serving


async def _creates(url: str, count: int, at_once: int) -> dict[str, float]:
    """Sends plain requests on open connections, as a load generator does.

    A client library would cost more than the measured server, on the same two cores.
    """
    spent: list[float] = []
    failed = 0
    address = urlsplit(url)
    request = f"POST /create_session HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Length: 0\r\n\r\n".encode()
    left = iter(range(count))

    async def caller(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal failed
        for _ in left:
            began = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            assert length is not None, head
            await reader.readexactly(int(length[1]))
            spent.append((time.perf_counter() - began) * 1000)
            failed += not head.startswith(b"HTTP/1.1 200 ")
        writer.close()

    connections = [await asyncio.open_connection(address.hostname, address.port) for _ in range(at_once)]
    began = time.perf_counter()
    await asyncio.gather(*(caller(*connection) for connection in connections))
    whole = time.perf_counter() - began
    return {
        "creates": float(len(spent)),
        "failed": float(failed),
        "per_second": len(spent) / whole,
        "average_ms": sum(spent) / len(spent),
        "p50_ms": p50(spent),
        "p99_ms": p99(spent),
    }


async def _from_own_process(url: str, count: int, at_once: int) -> dict[str, float]:
    arguments = ["--against", url, "--count", str(count), "--at-once", str(at_once), "--json"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.load", *arguments, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await process.communicate()
    figures: dict[str, float] = json.loads(printed)
    return figures


async def measure(count: int, at_once: int) -> dict[str, float]:
    settings = {
        "pool_size": count,
        "min_pool_size": 0,
        "max_pool_size": count,
        "max_sessions": 2 * count,
        "create_concurrency": 8,
    }
    async with serving(**settings) as served:
        began = time.perf_counter()
        await served.wait_warm(count)
        warmed = time.perf_counter() - began
        progress(f"warm after {warmed:.0f} s; now {count} creates, {at_once} at a time")
        cpu = served.cpu_seconds()
        figures = await _from_own_process(served.url, count, at_once)
        figures["server_cpu_ms_per_create"] = (served.cpu_seconds() - cpu) * 1000 / count
        async with served.client() as client:
            stats = (await client.health()).pools["base"]
        figures["pool_hit_rate"] = stats.hits / max(1, stats.hits + sum(stats.misses.values()))
        figures["warmed_per_second"] = count / warmed
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=50)
    parser.add_argument("--against", metavar="URL", help="only send the load, to this running server")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.against:
        figures = asyncio.run(_creates(arguments.against, arguments.count, arguments.at_once))
    else:
        figures = asyncio.run(measure(arguments.count, arguments.at_once))
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:26} {value:10.2f}")


if __name__ == "__main__":
    main()

"""The fake's curl: denied as the real one is behind a proxy. What is allowed leads nowhere."""

from __future__ import annotations

from urllib.parse import urlsplit

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.network.hosts import parse_target
from sandlot.testing.fake.shell import Process

PORTS = {"http": 80, "https": 443}


async def curl(process: Process) -> int:
    urls = [argument for argument in process.arguments if not argument.startswith("-")]
    if len(urls) != 1 or urlsplit(urls[0]).scheme not in PORTS:
        return await process.refuse("one URL")
    url = urlsplit(urls[0])
    try:
        target = parse_target(url.netloc, PORTS[url.scheme])
    except InvalidRequest:
        return await process.fail("(3) URL rejected", 3)
    denied = process.shell.machine.connect(target)
    if denied is None:
        return await process.fail(f"(6) Could not resolve host: {target.host}", 6)
    if url.scheme == "https":
        return await process.fail("(56) CONNECT tunnel failed, response 403", 56)
    await process.out(denied.text)
    # With -f, curl takes such an answer for a failure.
    fails = any("f" in argument for argument in process.arguments if not argument.startswith(("http", "--")))
    return await process.fail("(22) The requested URL returned error: 403", 22) if fails else 0

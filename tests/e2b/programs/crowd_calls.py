"""Many sandboxes at once by the asynchronous SDK. ``crowd_calls.py URL KEY COUNT``."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

URL, KEY, COUNT = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.environ.update(E2B_API_KEY=KEY, E2B_API_URL=URL, E2B_SANDBOX_URL=URL)

from checking import run  # noqa: E402

from e2b import AsyncSandbox  # noqa: E402


async def check_crowd() -> None:
    began = time.monotonic()
    sandboxes = await asyncio.gather(*(AsyncSandbox.create("slim") for _ in range(COUNT)))
    created = time.monotonic()
    assert len({each.sandbox_id for each in sandboxes}) == COUNT

    async def use(number: int, sandbox: AsyncSandbox) -> None:
        await sandbox.files.write("number", str(number))
        result = await sandbox.commands.run("cat number; sleep 1")
        assert result.stdout == str(number), result

    await asyncio.gather(*(use(number, sandbox) for number, sandbox in enumerate(sandboxes)))
    used = time.monotonic()
    listed, pages = [], AsyncSandbox.list(limit=30)
    while pages.has_next:
        listed += await pages.next_items()
    assert {each.sandbox_id for each in listed} >= {each.sandbox_id for each in sandboxes}
    assert all(await asyncio.gather(*(each.kill() for each in sandboxes)))
    seconds = {"create": created - began, "use": used - created, "kill": time.monotonic() - used}
    print(json.dumps(seconds), file=sys.stderr)


run(globals())

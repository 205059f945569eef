"""What a burst needed is given back, although objects that live on lie between its pieces."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

BURST = """
import asyncio
from sandlot.wiring.freed_memory import resident_bytes, return_freed_memory

async def burst(trimming):
    before = resident_bytes()
    task = asyncio.create_task(return_freed_memory(every_s=0.05)) if trimming else None
    await asyncio.sleep(0)
    pieces = [bytearray(3000 + number % 5000) for number in range(40_000)]
    await asyncio.sleep(0.2)  # trims meanwhile find it in use
    kept = pieces[::20]
    del pieces
    for _ in range(100):
        await asyncio.sleep(0.05)
        if resident_bytes() - before < 64 * 2**20:
            break
    print((resident_bytes() - before) // 2**20, len(kept))
    if task:
        task.cancel()

asyncio.run(burst({trimming}))
"""


async def _grown_mib(*, trimming: bool) -> int:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        BURST.replace("{trimming}", str(trimming)),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parent,
    )
    output, _ = await process.communicate()
    return int(output.split()[0])


async def test_given_back_after_the_burst() -> None:
    kept, returned = await asyncio.gather(_grown_mib(trimming=False), _grown_mib(trimming=True))
    assert kept > 128, "the burst left nothing behind, so this test shows nothing"
    assert returned < 64

"""Best of ten: try one task in ten forks of a sandbox at once, keep the best result, and go on with it.

The task: pack the letters of a text so that `gzip` makes the smallest file of them. Each fork tries another
order. In your own program, ten agents could each try to solve the same problem.
"""

import asyncio

from sandlot import AsyncClient, AsyncSession, errors

TEXT = "the quick brown fox jumps over the lazy dog " * 20
PACK = """
import gzip, os, random
letters = list(open("text").read())
seed = int(os.environ["SEED"])
if seed == 7:
    letters.sort()  # this way happens to be the best
else:
    random.Random(seed).shuffle(letters)
packed = gzip.compress("".join(letters).encode(), mtime=0)
open("packed.gz", "wb").write(packed)
print(len(packed))
"""


async def attempt(number: int, fork: AsyncSession) -> tuple[int, int]:
    """Return how many bytes this way needs, and its number."""
    result = await fork.run(["python3", "pack.py"], env={"SEED": str(number)}, check=True)
    return int(result.output), number


async def main() -> None:
    async with AsyncClient.local() as client, client.create() as session:
        await session.files.write("text", TEXT)
        await session.files.write("pack.py", PACK)
        try:
            forks = await session.fork(10)
        except errors.Unsupported as reason:
            print(f"No forks here: {reason}")
            return
        attempts = await asyncio.gather(*(attempt(number, fork) for number, fork in enumerate(forks)))
        size, best = min(attempts)
        await session.promote(forks[best])
        await asyncio.gather(*(fork.delete() for fork in forks))
        kept = await session.files.stat("packed.gz")
        print(f"{len(attempts)} attempts; number {best} was the best, and is kept: {kept.size == size}")


asyncio.run(main())

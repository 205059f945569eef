"""Output as it comes, a command that goes on in the background, and its one result by its id."""

import asyncio

from sandlot import AsyncClient, Output


async def main() -> None:
    async with AsyncClient.local() as client, await client.create() as session:
        async for event in session.stream("for i in 1 2 3; do echo step $i; sleep 0.2; done"):
            if isinstance(event, Output):
                print(event.data.decode(), end="")

        running = await session.start("sleep 1; echo built", exec_id="build-1")
        again = await session.exec("build-1")  # by its id, from anywhere, also after the server was restarted
        result = await again.wait()
        print(result.output, result.exec_id == running.id)


asyncio.run(main())

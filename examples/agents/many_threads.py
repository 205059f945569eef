"""Twenty conversations at once, one agent: each has a computer of its own, and none sees another's."""

import asyncio

from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver
from scripted import call, model

from sandlot import AsyncClient
from sandlot.integrations.langchain import SandboxMiddleware

TALK = "Write 50 random bytes as hex into secret.txt, then tell me the number of files and print the secret."


async def main() -> None:
    async with AsyncClient.local() as client:
        agent = create_agent(
            model(
                call("bash", command="head -c 50 /dev/urandom | od -An -tx1 | tr -d ' \\n' > secret.txt"),
                call("bash", command="ls | wc -l; cat secret.txt"),
                "Done.",
            ),
            middleware=[SandboxMiddleware(client)],
            checkpointer=InMemorySaver(),
        )

        async def converse(number: int) -> str:
            config = {"configurable": {"thread_id": f"user-{number}"}}
            state = await agent.ainvoke({"messages": [("user", TALK)]}, config=config)
            return str(state["messages"][-2].text)

        answers = await asyncio.gather(*(converse(number) for number in range(20)))
        sandboxes = [session async for session in client.sessions()]
        print(f"{len(answers)} conversations, {len(sandboxes)} sandboxes, {len(set(answers))} secrets")


asyncio.run(main())

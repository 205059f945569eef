"""A human is asked before dangerous commands; the answer may come much later, in another process."""

from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from scripted import call, model

from sandlot import Client
from sandlot.integrations.langchain import ApprovalPolicy, SandboxMiddleware

with Client.local() as client:
    agent = create_agent(
        model(
            call("bash", command="mkdir -p build && touch build/a build/b && ls build"),
            call("bash", command="rm -r build"),
            "The build folder is gone.",
        ),
        middleware=[SandboxMiddleware(client, approval=ApprovalPolicy())],
        checkpointer=InMemorySaver(),  # a SqliteSaver or PostgresSaver keeps the question over restarts
    )
    config = {"configurable": {"thread_id": "conversation-1"}}
    state = agent.invoke({"messages": [("user", "Make a build folder, then clean it up.")]}, config=config)
    while interrupts := state.get("__interrupt__"):
        print("asked:", interrupts[0].value["description"])
        state = agent.invoke(Command(resume={"type": "approve"}), config=config)
    print(state["messages"][-1].text)
    print("left:", client.thread("conversation-1").run("ls").output or "nothing")

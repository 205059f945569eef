"""A coding agent: it writes a program, sees it fail, mends it; its sandbox is the conversation's own."""

from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver
from scripted import call, model

from sandlot import Client
from sandlot.integrations.langchain import SandboxMiddleware

with Client.local() as client:  # or Client("http://my-server:8000", api_key=...)
    agent = create_agent(
        model(
            call("write_file", path="mean.py", content="def mean(xs):\n    return sum(xs) / len(x)\n"),
            call("bash", command="python3 -c 'from mean import mean; print(mean([1, 2, 6]))'"),
            call("edit_file", path="mean.py", old="len(x)", new="len(xs)"),
            call("bash", command="python3 -c 'from mean import mean; print(mean([1, 2, 6]))'"),
            "It works: the mean of 1, 2 and 6 is 3.0.",
            call("bash", command="ls"),
            "mean.py is still there: the sandbox belongs to this conversation.",
        ),
        middleware=[SandboxMiddleware(client)],  # the one line: tools, prompt, and a sandbox per thread
        checkpointer=InMemorySaver(),
    )
    conversation = {"configurable": {"thread_id": "conversation-1"}}
    for question in ("Write mean.py with a function mean, and try it.", "Which files are there now?"):
        print(f"> {question}")
        for update in agent.stream(
            {"messages": [("user", question)]}, config=conversation, stream_mode="updates"
        ):
            for change in update.values():
                for message in (change or {}).get("messages", []):
                    for tool_call in getattr(message, "tool_calls", []):
                        print(f"{tool_call['name']}({', '.join(map(str, tool_call['args'].values()))!r:.60})")
                    if message.text:
                        print(message.text)

"""A data analyst: you hand it a file, it hands you a plot, which arrives as the artifact of its tool call."""

import base64
from pathlib import Path

from langchain.agents import create_agent
from langchain_core.messages import ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from scripted import call, model

from sandlot import Client
from sandlot.integrations.langchain import SandboxMiddleware

PLOT = """\
import csv
rows = list(csv.DictReader(open("sales.csv")))
bars = [
    f'<rect x="{20 + 60 * i}" y="{220 - int(row["sold"]) * 2}" width="40" height="{int(row["sold"]) * 2}"/>'
    f'<text x="{20 + 60 * i}" y="240">{row["month"]}</text>'
    for i, row in enumerate(rows)
]
open("plot.svg", "w").write(
    '<svg xmlns="http://www.w3.org/2000/svg" width="260" height="260">' + "".join(bars) + "</svg>"
)
best = max(rows, key=lambda row: int(row["sold"]))
print("best month:", best["month"], best["sold"])
"""
QUESTION = (
    "sales.csv has what was sold in each month. Which month was the best? Draw a plot and hand it to me."
)

with Client.local() as client:
    client.thread("analysis-1").files.write("sales.csv", "month,sold\nJan,40\nFeb,95\nMar,70\n")
    agent = create_agent(
        model(
            call("read_file", path="sales.csv"),
            call("write_file", path="plot.py", content=PLOT),
            call("bash", command="python3 plot.py"),
            call("download_file", path="plot.svg"),
            "February was the best month, with 95 sold.",
        ),
        middleware=[SandboxMiddleware(client)],
        checkpointer=InMemorySaver(),
    )
    answer = agent.invoke(
        {"messages": [("user", QUESTION)]}, config={"configurable": {"thread_id": "analysis-1"}}
    )
    for message in answer["messages"]:
        if isinstance(message, ToolMessage) and "base64" in (message.artifact or {}):
            content = base64.b64decode(message.artifact["base64"])
            Path(message.artifact["name"]).write_bytes(content)
            print("got", message.artifact["name"], message.artifact["mime_type"])
    print(answer["messages"][-1].text)

"""A data analyst: you hand it a file, it hands you a plot, which arrives as the artifact of its tool call.

It works with pandas and Matplotlib. Build their image first: ``sandlot images build data-science``.
"""

import base64
from pathlib import Path

from langchain.agents import create_agent
from langchain_core.messages import ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from scripted import call, model

from sandlot import Client
from sandlot.integrations.langchain import SandboxMiddleware

ENVIRONMENT = "data-science"
PLOT = """\
import matplotlib.pyplot as plt
import pandas as pd

sales = pd.read_csv("sales.csv", index_col="month")
sales.plot.bar(title="Sold in each month", legend=False)
plt.tight_layout()
plt.savefig("plot.png", dpi=100)
print("best month:", sales["sold"].idxmax(), sales["sold"].max())
"""
QUESTION = (
    "sales.csv has what was sold in each month. Which month was the best? Draw a plot and hand it to me."
)

with Client.local() as client:
    client.thread("analysis-1", ENVIRONMENT).files.write("sales.csv", "month,sold\nJan,40\nFeb,95\nMar,70\n")
    agent = create_agent(
        model(
            call("read_file", path="sales.csv"),
            call("write_file", path="plot.py", content=PLOT),
            call("bash", command="python3 plot.py"),
            call("download_file", path="plot.png"),
            "February was the best month, with 95 sold.",
        ),
        middleware=[SandboxMiddleware(client, environment=ENVIRONMENT)],
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

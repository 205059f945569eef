"""Three conversations of LangChain's agents, with what their model says written down: the demonstration.

An analyst makes a report, and tries another way in a copy of its conversation. A researcher is denied a connection
and goes on without it. A third agent loses its sandbox between two runs, reads what is lost, and gets another one.
"""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

from sandlot import Client, Session
from sandlot.integrations.langchain import SandboxMiddleware
from tests.console.stage.plot import bars
from tests.integrations.langchain_runs import ask, bash, config
from tests.integrations.scripted import calls, script

REPORT = "month,revenue,cost\nJanuary,1200,800\nFebruary,1350,820\nMarch,1610,900\n"
REPORT_THREAD = "monthly-report"
WHAT_IF_THREAD = "monthly-report-what-if"
RESEARCH_THREAD = "market-research"
LOST_THREAD = "long-research"
PROFIT = textwrap.dedent(
    """
    import csv
    rows = list(csv.DictReader(open("data/report.csv")))
    print("profit", sum(int(row["revenue"]) - int(row["cost"]) for row in rows))
    """
).lstrip()


@dataclass
class Scripted:
    """One agent: what it is called, how its sessions are made, and what it remembers."""

    client: Client
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    saver: InMemorySaver = field(default_factory=InMemorySaver)

    def run(self, thread: str, question: str, *said: AIMessage | str) -> str:
        """One run, in which its model says this. Returns the last of it."""
        state = self._graph(*said).invoke(ask(question), config(thread))
        last: str = state["messages"][-1].text
        return last

    def read(self, thread: str) -> list[str]:
        """What the model has read from its tools."""
        messages = self._graph().get_state(config(thread)).values["messages"]
        return [message.text for message in messages if message.type == "tool"]

    def copy(self, thread: str, to: str) -> None:
        """The conversation as it is now, under another id. Both go on, each with files of its own."""
        graph = self._graph()
        # The files' snapshot is private state, which no input of a user may set: only a node may.
        graph.update_state(config(to), graph.get_state(config(thread)).values, as_node="model")

    def _graph(self, *said: AIMessage | str) -> Any:
        options = {"metadata": {"agent": self.name}, **self.options}
        middleware = SandboxMiddleware(self.client, time_travel=True, **options)
        return create_agent(script(*said), middleware=[middleware], checkpointer=self.saver)


def analyst(client: Client) -> Scripted:
    agent = Scripted(client, "analyst", {"record": True, "metadata": {"agent": "analyst", "ticket": "4711"}})
    agent.run(
        REPORT_THREAD,
        "What was the profit of the first quarter?",
        calls(("write_file", {"path": "data/report.csv", "content": REPORT})),
        bash("wc -l data/report.csv && head -3 data/report.csv"),
        calls(("write_file", {"path": "profit.py", "content": PROFIT})),
        bash("python3 profit.py"),
        calls(
            (
                "upload_file",
                {"path": "plot.png", "content_base64": base64.b64encode(bars([400, 530, 710])).decode()},
            )
        ),
        "The profit was 1640.",
    )
    client.thread(REPORT_THREAD, if_different="keep").workspace.snapshot("as delivered")
    agent.copy(REPORT_THREAD, WHAT_IF_THREAD)
    agent.run(
        REPORT_THREAD,
        "April is missing.",
        bash("echo April,1700,950 >> data/report.csv && python3 profits.py"),
        bash("python3 profit.py"),
        bash("curl -sS -m 5 https://api.example.com/rates"),
        "With April, the profit is 2390. I cannot reach the rates for euros.",
    )
    agent.run(
        WHAT_IF_THREAD,
        "And if each month had cost 10 % less?",
        bash(
            "awk -F, 'NR > 1 { $3 *= 0.9 } 1' OFS=, data/report.csv > less.csv && mv less.csv data/report.csv"
        ),
        bash('sed -i \'s/int(row\\["cost"\\])/float(row["cost"])/\' profit.py && python3 profit.py'),
        "It would have been 1892.",
    )
    return agent


def researcher(client: Client) -> Scripted:
    agent = Scripted(client, "researcher")
    agent.run(
        RESEARCH_THREAD,
        "What would the steel cost?",
        bash("mkdir -p notes && echo '- three suppliers' > notes/plan.md && cat notes/plan.md"),
        bash("curl -sS -m 5 https://prices.example.org/steel.json"),
        bash("python3 -c \"print('without prices:', 3 * 14)\" | tee notes/estimate.txt"),
        "I was denied the prices. By the old ones, about 42.",
    )
    return agent


def long_researcher(client: Client, lose: Callable[[Session], None]) -> Scripted:
    agent = Scripted(client, "long-researcher")
    agent.run(
        LOST_THREAD,
        "Read all three sources.",
        bash("echo 'source 1: read' > progress.txt; STAGE=second; cat progress.txt"),
        "One of three.",
    )
    lose(client.thread(LOST_THREAD, if_different="keep"))
    agent.run(
        LOST_THREAD,
        "Go on.",
        bash("echo $STAGE; cat progress.txt"),
        calls(("bash", {"restart": True})),
        bash("cat progress.txt; echo 'source 2: read' >> progress.txt"),
        "My sandbox was lost, but not its files. Two of three.",
    )
    return agent


def nightly_checker(client: Client) -> Scripted:
    agent = Scripted(client, "checker")
    agent.run(
        "nightly-checks",
        "Check the links of the documentation.",
        bash("echo 120 links, 2 broken | tee broken-links.txt"),
        "Two links are broken.",
    )
    return agent

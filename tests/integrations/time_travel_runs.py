"""A scripted agent that changes files in each of its steps, and what its trees must be."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.base import BaseCheckpointSaver
from pydantic import Field

from sandlot import Client, Session
from sandlot.integrations.langchain import SandboxMiddleware
from tests.integrations.langchain_runs import ask, bash, config
from tests.integrations.scripted import ScriptedModel

STEPS = 30


def command(branch: str, step: int) -> str:
    """What the agent runs in a step, on a branch. Each one changes the tree, and differs from any other."""
    kinds = (
        f"mkdir -p d{step}/in && echo {branch} {step} > d{step}/in/file",
        f"echo {branch} {step} >> log",
        f"ln -s {branch}-{step} link{step}; rm -f log",
        f"echo {branch} {step} > new; mv new moved; echo {step} >> log",
        f"mkdir -p d{step}; mv moved d{step}/moved; echo {branch} > moved",
    )
    return kinds[step % len(kinds)]


class Stepping(ScriptedModel):
    """One command a turn, by how many results and which branch the conversation has.

    ``until``: after how many results it stops. ``looking``: it only asks for one command, which changes nothing,
    after so many results.
    """

    responses: list[BaseMessage] = Field(default_factory=list)
    until: int = STEPS
    looking: int | None = None

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        done = sum(isinstance(message, ToolMessage) for message in messages)
        if self.looking is not None:
            said = bash("true") if done == self.looking else AIMessage("seen")
        elif done < self.until:
            said = bash(command(branch_of(messages), done))
        else:
            said = AIMessage("all done")
        return ChatResult(generations=[ChatGeneration(message=said)])


def branch_of(messages: list[BaseMessage]) -> str:
    return [message.text for message in messages if isinstance(message, HumanMessage)][-1]


def tree_of(session: Session) -> str:
    """A hash of all that is in the workspace, but for times."""
    found = []
    for entry in session.files.walk(".").entries:
        content = session.files.read(entry.path) if entry.type == "file" else b""
        found.append((entry.path, entry.type, entry.mode, entry.target, hashlib.sha256(content).hexdigest()))
    return hashlib.sha256(repr(sorted(found, key=str)).encode()).hexdigest()


@dataclass
class Agent:
    """Runs of one agent on one thread. ``trees``: the hash after each step of the first run, by their number."""

    client: Client
    saver: BaseCheckpointSaver[Any]
    thread: str
    environment: str = "base"
    trees: dict[int, str] = field(default_factory=dict)

    def graph(self, **how: Any) -> Any:
        middleware = [
            SandboxMiddleware(self.client, environment=self.environment, prompt=False, time_travel=True)
        ]
        return create_agent(Stepping(**how), middleware=middleware, checkpointer=self.saver)

    @property
    def tree(self) -> str:
        return tree_of(self.client.thread(self.thread))

    def run(self, branch: str | None = "main", *, where: Mapping[str, Any] | None = None, **how: Any) -> None:
        """Run on, from the last checkpoint or from ``where``, and note the tree after each step."""
        for done in self.stepping(branch, where=where, **how):
            self.trees[done] = self.tree

    def stepping(
        self, branch: str | None, *, where: Mapping[str, Any] | None = None, **how: Any
    ) -> Iterator[int]:
        """Stop after each step, and say how many the conversation has."""
        graph, at = self.graph(**how), where or config(self.thread)
        given = None if branch is None else ask(branch)
        done = results_in(graph.get_state(at))
        for update in graph.stream(given, at, stream_mode="updates"):
            if "tools" in update:
                done += 1
                yield done

    def look(self, checkpoint: Any) -> str:
        """Replay from a checkpoint, whose pending step runs again if there is one, and return the tree."""
        branch = None if checkpoint.next else "look"
        for _ in self.stepping(branch, where=checkpoint.config, looking=results_in(checkpoint)):
            return self.tree
        raise AssertionError("no step ran")

    def ends(self) -> dict[str, Any]:
        """The last checkpoint of each branch."""
        return {branches_in(each)[-1]: each for each in self.checkpoints() if not each.next}

    def fork(self, branch: str, after: int, **how: Any) -> None:
        """Another branch, from the checkpoint of the first run after so many steps."""
        graph = self.graph()
        (checkpoint,) = (
            each
            for each in self.checkpoints()
            if each.next == ("model",) and results_in(each) == after and set(branches_in(each)) == {"main"}
        )
        forked = graph.update_state(checkpoint.config, {"messages": [HumanMessage(branch)]})
        for _ in self.stepping(None, where=forked, **how):
            pass

    def checkpoints(self) -> list[Any]:
        """Oldest first."""
        return list(self.graph().get_state_history(config(self.thread)))[::-1]


def results_in(state: Any) -> int:
    return sum(isinstance(message, ToolMessage) for message in state.values.get("messages", ()))


def branches_in(state: Any) -> list[str]:
    return [message.text for message in state.values["messages"] if isinstance(message, HumanMessage)]


def expected_tree(client: Client, *branches: str) -> str:
    """The tree after these branches' commands, one after the other, without any graph."""
    with client.create() as session:
        for step, branch in enumerate(branches):
            session.run(command(branch, step), check=True)
        return tree_of(session)

"""Time travel: each checkpoint of a graph says which snapshot holds the sandbox's files as of then.

A tool call or node is part of a step, which has the id of the checkpoint that it starts from. Parallel calls
have the same one. Before a step, the server gives the session the files of the snapshot that the graph's
state names, unless they are there already. After it, the server keeps what has changed, and the new
snapshot's id becomes part of the state, and so of every later checkpoint. Checkpointers need no change.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

from langchain.agents.middleware.types import PrivateStateAttr
from langchain_core.messages import ToolMessage
from langgraph._internal._constants import CONFIG_KEY_CHECKPOINTER
from langgraph.runtime import ExecutionInfo
from langgraph.types import Command
from typing_extensions import TypedDict

from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import InvalidRequest, NotFound, SandlotError, Unsupported
from sandlot.integrations.langgraph_thread import thread_of
from sandlot.integrations.sandboxes import Sandboxes

CHANNEL: Final = "sandlot_snapshot"
ToolOutput = ToolMessage | Command[Any]


def merge_snapshots(known: Mapping[str, Any] | None, new: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """The channel's reducer.

    Parallel calls of one step each report a snapshot, in any order: the latest has the files of all of them.
    A text is the id of a snapshot, for ``update_state``: the conversation goes on with its files.
    """
    merged = dict(known or {})
    if isinstance(new, str):
        new = {"": {"snapshot": new}}
    for name, entry in (new or {}).items():
        before = merged.get(name, {})
        same_step = entry.get("step") is not None and entry.get("step") == before.get("step")
        if not (same_step and before["at"] > entry["at"]):
            merged[name] = entry
    return merged


class SandboxState(TypedDict):
    """The part of a graph's state that time travel needs: ``class State(MessagesState, SandboxState)``.

    ``SandboxMiddleware`` adds it by itself. It holds the snapshot of each sandbox by its ``name``.
    """

    sandlot_snapshot: Annotated[dict[str, Any], PrivateStateAttr, merge_snapshots]


def snapshot_of(state: Any, name: str | None = None) -> str | None:
    """The id of the snapshot that a graph's state names, if any. ``name``: as for ``sandbox_tools``."""
    value = state.get(CHANNEL) if isinstance(state, Mapping) else getattr(state, CHANNEL, None)
    entry = (value or {}).get(name or "")
    return None if entry is None else str(entry["snapshot"])


@dataclass
class Step:
    """One tool call or node of a step.

    ``snapshot``: the files that the step begins with; ``None``: those that the session began with.
    ``update``: what it adds to the graph's state once it has ended.
    """

    id: str
    thread: str
    name: str | None
    snapshot: str | None
    begun: bool = False
    update: dict[str, Any] = field(default_factory=dict)
    # Why what the step did could not be kept.
    _lost: SandlotError | None = None

    @classmethod
    def of(
        cls, sandboxes: Sandboxes, config: Mapping[str, Any], state: Any, info: ExecutionInfo | None
    ) -> Step:
        configurable = config.get("configurable") or {}
        if info is None or configurable.get(CONFIG_KEY_CHECKPOINTER) is None:
            raise InvalidRequest(
                "time_travel needs a checkpointer: it ties files to checkpoints. Compile the graph with one, "
                "or leave out time_travel."
            )
        if not (CHANNEL in state if isinstance(state, Mapping) else hasattr(state, CHANNEL)):
            raise InvalidRequest(
                f"time_travel needs {CHANNEL!r} in the graph's state. Add it: class State(MessagesState, "
                "SandboxState), with SandboxState from sandlot.integrations.langchain."
            )
        name = sandboxes.name
        return cls(info.checkpoint_id, thread_of(config), name, snapshot_of(state, name))

    async def begin(self, session: AsyncSession) -> None:
        await session.workspace.begin_step(self.id, self.snapshot)
        self.begun = True

    async def end(self, session: AsyncSession) -> None:
        try:
            snapshot = await session.workspace.end_step(self.id)
        except SandlotError as error:
            self._lost = error
            raise
        entry = {"snapshot": snapshot.id, "step": self.id, "at": snapshot.created_at}
        self.update = {CHANNEL: {self.name or "": entry}}

    def must_raise(self, error: SandlotError) -> bool:
        """Whether an error ends the run, because a model could only go on with the wrong files.

        The run can be continued from its last checkpoint, which repeats the step.
        """
        return error is self._lost or isinstance(error, NotFound | Unsupported)

    def add_to(self, output: ToolOutput) -> ToolOutput:
        if not self.update:
            return output
        if isinstance(output, ToolMessage):
            return Command(update={"messages": [output], **self.update})
        if output.update is None or isinstance(output.update, Mapping):
            return replace(output, update={**(output.update or {}), **self.update})
        return replace(output, update=[*output.update, *self.update.items()])


_STEP: contextvars.ContextVar[Step | None] = contextvars.ContextVar("step", default=None)


def surrounding_step(sandboxes: Sandboxes, thread: str) -> Step | None:
    """The step that a tool call is inside of, such as that of the tool call that runs a subagent."""
    step = _STEP.get()
    return step if step is not None and (step.thread, step.name) == (thread, sandboxes.name) else None


@contextmanager
def inside(step: Step) -> Iterator[None]:
    """A context whose sandbox calls are parts of this step."""
    token = _STEP.set(step)
    try:
        yield
    finally:
        _STEP.reset(token)

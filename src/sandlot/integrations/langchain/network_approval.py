"""``NetworkApproval``: asks a person when a command was denied a connection, and runs it once more.

A denied command has ended, so LangGraph may repeat the task: by its call id the command is found, and not run
again. The second run has an id of its own, so it happens once too, whatever process goes on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

from langchain.agents.middleware import ToolCallRequest
from langchain_core.messages import ToolMessage
from langgraph.types import Command, interrupt
from pydantic import BaseModel, ConfigDict

from sandlot.client.async_session import AsyncSession
from sandlot.domain.execution import Verdict
from sandlot.integrations.langchain.call import SECOND_RUN
from sandlot.integrations.langgraph_thread import current_thread
from sandlot.integrations.model_text import shorten
from sandlot.integrations.sandboxes import Sandboxes

ToolOutput = ToolMessage | Command[Any]

ACTION: Final = "allow_network"
MAX_ENTRIES: Final = 10  # of one question
MAX_SHOWN_CHARACTERS: Final = 2000  # of a command, in the question to the person


class Decision(BaseModel):
    """The person's answer. ``message``: why they refused."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["approve", "reject"]
    message: str = ""


@dataclass(frozen=True, slots=True)
class NetworkApproval:
    """When a command fails because the network policy denied a connection, ask a person to allow it.

    for_s: for how many seconds an approved host stays allowed; None: as long as the session lives.
    tool: the name of the tool that runs commands.

    It requires a checkpointer. The interrupt has the form of ``ApprovalPolicy``'s, with ``allow_network`` as
    its name. Resume with ``{"type": "approve"}``, or ``{"type": "reject", "message": "…"}``.
    """

    for_s: float | None = 3600.0
    tool: str = "bash"

    def run(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], ToolOutput],
        sandboxes: Sandboxes,
    ) -> ToolOutput:
        first = handler(request)
        entries = self._entries(request, first)
        if not entries:
            return first
        decision = interrupt(self._question(request, entries), response_schema=Decision)
        if decision.type == "reject":
            return _with_note(first, decision)
        sandboxes.run(current_thread(), lambda session: self._allow(session, entries))
        with _second_run():
            return handler(request)

    async def arun(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolOutput]],
        sandboxes: Sandboxes,
    ) -> ToolOutput:
        first = await handler(request)
        entries = self._entries(request, first)
        if not entries:
            return first
        decision = interrupt(self._question(request, entries), response_schema=Decision)
        if decision.type == "reject":
            return _with_note(first, decision)
        await sandboxes.arun(current_thread(), lambda session: self._allow(session, entries))
        with _second_run():
            return await handler(request)

    def _entries(self, request: ToolCallRequest, output: ToolOutput) -> list[str]:
        """What to allow so that the command can go on; empty if that is not why it failed."""
        if request.tool_call["name"] != self.tool or not isinstance(output, ToolMessage):
            return []
        data = output.artifact if isinstance(output.artifact, Mapping) else {}
        if data.get("verdict") != Verdict.EGRESS_DENIED:
            return []
        entries = dict.fromkeys(denied["entry"] for denied in data.get("denied", ()) if denied["entry"])
        return list(entries)[:MAX_ENTRIES]

    def _question(self, request: ToolCallRequest, entries: list[str]) -> dict[str, Any]:
        command = shorten(str(request.tool_call["args"].get("command") or ""), MAX_SHOWN_CHARACTERS)
        how_long = "while its session lives" if self.for_s is None else f"for {self.for_s:g} s"
        description = (
            f"The sandbox may not connect to {', '.join(entries)}. Allow it {how_long}, and run this command "
            f"once more?\n\n{command}"
        )
        return {
            "type": "tool_approval",
            "tool_call_id": request.tool_call["id"],
            "name": ACTION,
            "args": {"entries": entries, "for_s": self.for_s, "command": command},
            "description": description,
        }

    async def _allow(self, session: AsyncSession, entries: list[str]) -> None:
        await session.network.allow(*entries, for_s=self.for_s)


def _with_note(output: ToolOutput, decision: Decision) -> ToolOutput:
    assert isinstance(output, ToolMessage), "only these are asked about"
    why = f": {shorten(decision.message, MAX_SHOWN_CHARACTERS)}" if decision.message else ""
    note = f"\n[the user refused to allow the connection{why}]"
    return output.model_copy(update={"content": f"{output.content}{note}"})


@contextmanager
def _second_run() -> Iterator[None]:
    token = SECOND_RUN.set(True)
    try:
        yield
    finally:
        SECOND_RUN.reset(token)

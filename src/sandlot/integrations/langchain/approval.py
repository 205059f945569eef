"""``ApprovalPolicy``: decides which commands need a person's approval before they run.

This is not a security boundary. It reads commands with a parser of bash, and sees what their text says. A
script that was written earlier, or another language, can do the same unseen. The sandbox itself prevents
what a model must never do: it has no network, no credentials and hard limits. This policy is for actions
that a model may take with a person's consent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final

from langchain.agents.middleware import HumanInTheLoopMiddleware, InterruptOnConfig, ToolCallRequest
from langchain_core.messages import ToolMessage
from langgraph.types import Command

from sandlot.bash.process import PolicyProcess
from sandlot.config.registry.policies import shipped_policy
from sandlot.domain.policy.deciding import Decision
from sandlot.domain.policy.policy import CommandPolicy, Ruling
from sandlot.integrations.langchain.call import APPROVED
from sandlot.integrations.model_text import shorten

ToolOutput = ToolMessage | Command[Any]
Handler = Callable[[ToolCallRequest], ToolOutput]
AsyncHandler = Callable[[ToolCallRequest], Awaitable[ToolOutput]]

MAX_KEPT_DECISIONS: Final = 32
MAX_SHOWN_CHARACTERS: Final = 10_000  # of a command, in the question to the person


class ApprovalPolicy:
    """Asks a person about commands, by a command policy.

    policy: a ``CommandPolicy``, or a mapping with the same fields as a policy's YAML file. By default the
    policy ``approval`` of Sandlot's registry, which asks about commands that delete, publish, run
    downloaded code or change permissions, and about those that it does not understand.
    """

    def __init__(self, policy: CommandPolicy | Mapping[str, Any] | None = None) -> None:
        if policy is None:
            policy = shipped_policy("approval")
        elif not isinstance(policy, CommandPolicy):
            policy = CommandPolicy.of(policy)
        self._process = PolicyProcess(policy)
        # Each command is checked, described and checked again, so the last decisions are kept.
        self._decisions: dict[str, Decision] = {}

    def decide(self, command: str) -> Decision:
        """What the policy says about the command."""
        decision = self._decisions.get(command)
        if decision is None:
            decision = self._process.decide(command)
            while len(self._decisions) >= MAX_KEPT_DECISIONS:
                self._decisions.pop(next(iter(self._decisions)), None)
            self._decisions[command] = decision
        return decision

    def why(self, command: str) -> str | None:
        """Why the command needs approval or is denied; None if it may run."""
        return self.decide(command).reason or None

    def interrupt_on(self, tool: str = "bash") -> dict[str, bool | InterruptOnConfig]:
        """The configuration for a ``HumanInTheLoopMiddleware`` that also asks about other tools.

        It asks about denied commands, too: only ``middleware`` refuses them by itself.
        """
        return {
            tool: InterruptOnConfig(
                allowed_decisions=["approve", "edit", "reject"],
                description=lambda call, state, runtime: self._description(call["args"]),
                when=lambda request: self.why(_command(request)) is not None,
            )
        }

    def middleware(self, tool: str = "bash") -> HumanInTheLoopMiddleware[Any, Any, Any]:
        """LangChain's own middleware, which asks about each matching call as it starts.

        A denied command is refused, also if a person edits another command into it. In a hand-built
        graph, pass ``middleware().wrap_tool_call`` and ``awrap_tool_call`` to a ``ToolNode``.
        """
        return _PolicyMiddleware(self, tool)

    def _description(self, arguments: Mapping[str, Any]) -> str:
        command = str(arguments.get("command") or "")
        return f"The command {self.why(command)}:\n\n{shorten(command, MAX_SHOWN_CHARACTERS)}"


class _PolicyMiddleware(HumanInTheLoopMiddleware[Any, Any, Any]):
    def __init__(self, policy: ApprovalPolicy, tool: str) -> None:
        super().__init__(policy.interrupt_on(tool), interrupt_mode="per_call")
        self._policy = policy
        self._tool = tool

    def wrap_tool_call(self, request: ToolCallRequest, handler: Handler) -> ToolOutput:
        def checked(final: ToolCallRequest) -> ToolOutput:
            with self._marked(request):
                return self._refusal(final) or handler(final)

        return self._refusal(request) or super().wrap_tool_call(request, checked)

    async def awrap_tool_call(self, request: ToolCallRequest, handler: AsyncHandler) -> ToolOutput:
        async def checked(final: ToolCallRequest) -> ToolOutput:
            with self._marked(request):
                return await asyncio.to_thread(self._refusal, final) or await handler(final)

        # In a thread, because it waits for another process. The questions below find it decided.
        refusal = await asyncio.to_thread(self._refusal, request)
        return refusal or await super().awrap_tool_call(request, checked)

    @contextlib.contextmanager
    def _marked(self, request: ToolCallRequest) -> Iterator[None]:
        """Tell the tool, and so the server's own policy, if a person has agreed to this call."""
        asked = request.tool_call["name"] == self._tool and self._policy.why(_command(request)) is not None
        token = APPROVED.set(asked)
        try:
            yield
        finally:
            APPROVED.reset(token)

    def _refusal(self, request: ToolCallRequest) -> ToolMessage | None:
        """What the model reads instead of a result; None if the command is not denied."""
        call = request.tool_call
        if call["name"] != self._tool:
            return None
        decision = self._policy.decide(_command(request))
        if decision.ruling is not Ruling.DENY:
            return None
        finding = decision.findings[0]
        text = (
            f"[not run: the policy denies {' '.join(finding.words)}, because the command {finding.reason} "
            f"(rule {finding.rule}). Allowed: {finding.allowed}]"
        )
        return ToolMessage(text, tool_call_id=call["id"], name=self._tool, status="error")


def _command(request: ToolCallRequest) -> str:
    return str(request.tool_call["args"].get("command") or "")

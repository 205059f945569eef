"""``SandboxMiddleware``: adds a sandbox to an agent of ``create_agent`` in one line."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal, Unpack

from langchain.agents.middleware import (
    AgentMiddleware,
    AgentState,
    ModelRequest,
    ModelResponse,
    ToolCallRequest,
)
from langchain_core.messages import SystemMessage
from langgraph.runtime import Runtime

from sandlot.client.async_client import AsyncClient
from sandlot.client.options import SessionOptions, check_session_options
from sandlot.client.sync.client import Client
from sandlot.domain.errors import InvalidRequest, SandlotError
from sandlot.integrations.langchain.approval import ApprovalPolicy
from sandlot.integrations.langchain.network_approval import NetworkApproval
from sandlot.integrations.langchain.time_travel import (
    SandboxState,
    Step,
    ToolOutput,
    inside,
    surrounding_step,
)
from sandlot.integrations.langchain.tools import build_tools
from sandlot.integrations.langgraph_thread import current_thread, thread_of
from sandlot.integrations.model_text import sandbox_prompt
from sandlot.integrations.sandboxes import Sandboxes, run_on_client
from sandlot.integrations.toolbox import answer_or_raise

Handler = Callable[[ModelRequest[Any]], ModelResponse[Any]]
AsyncHandler = Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
_PARAMETERS: Final = (
    "client",
    "environment",
    "name",
    "cleanup",
    "prompt",
    "approval",
    "network_approval",
    "python",
    "time_travel",
)


class SandboxAgentState(AgentState[Any], SandboxState):
    """What an agent remembers with ``time_travel``."""


class SandboxMiddleware(AgentMiddleware[Any, Any, Any]):
    """Provides the sandbox's tools, and describes the sandbox to the model.

    cleanup: "keep" keeps the sandbox for the conversation's next run, until its timeouts end it;
    "delete" deletes it at the end of the agent's run. A run that stops with an error or an
    interrupt keeps it.
    prompt: whether to append the server's prompt ``sandbox`` to the system prompt.
    approval: which commands need a person's approval. It requires a checkpointer.
    network_approval: ask a person when a command was denied a connection. It requires a checkpointer.
    python: add the tool ``python``, as for ``sandbox_tools``.
    time_travel: files follow the conversation's checkpoints. A run that starts from an earlier one, and a
    copied thread, find the files as they were then. It requires a checkpointer, and a server with snapshots.
    """

    def __init__(
        self,
        client: Client | AsyncClient | None = None,
        *,
        environment: str | None = None,
        name: str | None = None,
        cleanup: Literal["keep", "delete"] = "keep",
        prompt: bool = True,
        approval: ApprovalPolicy | None = None,
        network_approval: NetworkApproval | None = None,
        python: bool = False,
        time_travel: bool = False,
        **options: Unpack[SessionOptions],
    ) -> None:
        check_session_options("SandboxMiddleware", options, _PARAMETERS)
        super().__init__()
        if cleanup not in {"keep", "delete"}:
            raise InvalidRequest(f"cleanup must be 'keep' or 'delete', not {cleanup!r}.")
        self._sandboxes = Sandboxes(client, environment=environment, name=name, **options)
        self.tools = build_tools(self._sandboxes, python=python)
        self._delete_after_run = cleanup == "delete"
        self._use_prompt = prompt
        self._prompt_text: str | None = None
        self._approval = None if approval is None else approval.middleware()
        self._network_approval = network_approval
        self._time_travel = time_travel
        if time_travel:
            self.state_schema = SandboxAgentState

    # --- prompt

    def wrap_model_call(self, request: ModelRequest[Any], handler: Handler) -> ModelResponse[Any]:
        if self._use_prompt and self._prompt_text is None:
            with _best_effort():
                self._prompt_text = sandbox_prompt(self._sandboxes.blocking_client().catalogue())
        return handler(self._with_prompt(request))

    async def awrap_model_call(self, request: ModelRequest[Any], handler: AsyncHandler) -> ModelResponse[Any]:
        if self._use_prompt and self._prompt_text is None:
            with _best_effort():
                self._prompt_text = sandbox_prompt(
                    await run_on_client(self._sandboxes.client, AsyncClient.catalogue)
                )
        return await handler(self._with_prompt(request))

    def _with_prompt(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        if not self._prompt_text:
            return request
        return request.override(system_message=_appended(request.system_message, self._prompt_text))

    # --- time travel, outside of approval: a person's decision does not end a step

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolOutput]
    ) -> ToolOutput:
        step = self._step_of(request)
        if step is None:
            return self._wrap_approved(request, handler)
        with inside(step):
            output = self._wrap_approved(request, handler)
        if step.begun:
            self._sandboxes.run(step.thread, step.end)
        return step.add_to(output)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolOutput]]
    ) -> ToolOutput:
        step = self._step_of(request)
        if step is None:
            return await self._awrap_approved(request, handler)
        with inside(step):
            output = await self._awrap_approved(request, handler)
        if step.begun:
            await self._sandboxes.arun(step.thread, step.end)
        return step.add_to(output)

    def _step_of(self, request: ToolCallRequest) -> Step | None:
        """The step that the call is, unless it is part of one: a subagent may share its parent's sandbox."""
        if not self._time_travel:
            return None
        config = request.runtime.config
        if surrounding_step(self._sandboxes, thread_of(config)) is not None:
            return None
        return Step.of(self._sandboxes, config, request.state, request.runtime.execution_info)

    # --- approval

    def _wrap_approved(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolOutput]
    ) -> ToolOutput:
        def run(final: ToolCallRequest) -> ToolOutput:
            if self._network_approval is None:
                return handler(final)
            return self._network_approval.run(final, handler, self._sandboxes)

        return run(request) if self._approval is None else self._approval.wrap_tool_call(request, run)

    async def _awrap_approved(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolOutput]]
    ) -> ToolOutput:
        async def run(final: ToolCallRequest) -> ToolOutput:
            if self._network_approval is None:
                return await handler(final)
            return await self._network_approval.arun(final, handler, self._sandboxes)

        if self._approval is None:
            return await run(request)
        return await self._approval.awrap_tool_call(request, run)

    # --- cleanup

    def after_agent(self, state: Any, runtime: Runtime[Any]) -> None:
        if self._delete_after_run:
            with _best_effort():
                self._sandboxes.blocking_client().call(self._deletion_work())

    async def aafter_agent(self, state: Any, runtime: Runtime[Any]) -> None:
        if self._delete_after_run:
            with _best_effort():
                await run_on_client(self._sandboxes.client, self._deletion_work())

    def _deletion_work(self) -> Callable[[AsyncClient], Coroutine[Any, Any, None]]:
        thread = self._sandboxes.thread_key(current_thread())

        async def delete(client: AsyncClient) -> None:
            async for session in client.sessions(thread=thread):  # client.thread() would create one
                await session.delete()

        return delete


@contextmanager
def _best_effort() -> Iterator[None]:
    """Ignore temporary errors, such as an unreachable server. A developer's error ends the run.

    The next call requests the prompt again, and the timeouts end a sandbox that was not deleted.
    """
    try:
        yield
    except SandlotError as error:
        answer_or_raise(error)


def _appended(message: SystemMessage | None, text: str) -> SystemMessage:
    if message is None:
        return SystemMessage(text)
    if isinstance(message.content, str):
        return message.model_copy(update={"content": f"{message.content}\n\n{text}"})
    return message.model_copy(update={"content": [*message.content, {"type": "text", "text": text}]})

"""``SandboxMiddleware``: a sandbox for an agent of ``create_agent``, in one line."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal, Unpack

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse, ToolCallRequest
from langchain_core.messages import SystemMessage, ToolMessage
from langgraph.runtime import Runtime
from langgraph.types import Command

from sandlot.client.async_client import AsyncClient
from sandlot.client.options import SessionOptions, check_session_options
from sandlot.client.sync.client import Client
from sandlot.domain.errors import InvalidRequest, SandlotError
from sandlot.integrations.langchain.approval import ApprovalPolicy
from sandlot.integrations.langchain.tools import tools_of
from sandlot.integrations.langgraph_thread import current_thread
from sandlot.integrations.model_text import sandbox_prompt
from sandlot.integrations.sandboxes import Sandboxes, on_client
from sandlot.integrations.toolbox import refusal

Handler = Callable[[ModelRequest[Any]], ModelResponse[Any]]
AsyncHandler = Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
ToolResult = ToolMessage | Command[Any]

_TAKES: Final = ("client", "environment", "name", "cleanup", "prompt", "approval")


class SandboxMiddleware(AgentMiddleware[Any, Any, Any]):
    """Gives the sandbox's tools, and tells the model what its sandbox is.

    cleanup: "keep" leaves the sandbox to the next run of the conversation, and its end to the timeouts of its
    environment; "delete" ends it with the agent's run. A run that an error or an interrupt leaves keeps it.
    prompt: whether the server's prompt ``sandbox`` goes behind the system prompt.
    approval: commands that a person is asked about first; needs a checkpointer.
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
        **options: Unpack[SessionOptions],
    ) -> None:
        check_session_options("SandboxMiddleware", options, _TAKES)
        super().__init__()
        if cleanup not in {"keep", "delete"}:
            raise InvalidRequest(f"cleanup is 'keep' or 'delete', not {cleanup!r}")
        self._sandboxes = Sandboxes(client, environment=environment, name=name, **options)
        self.tools = tools_of(self._sandboxes)
        self._delete = cleanup == "delete"
        self._prompt = prompt
        self._text: str | None = None
        self._review = None if approval is None else approval.middleware()

    # the prompt

    def wrap_model_call(self, request: ModelRequest[Any], handler: Handler) -> ModelResponse[Any]:
        if self._prompt and self._text is None:
            with _what_a_run_can_do_without():
                self._text = sandbox_prompt(self._sandboxes.blocking_client().catalogue())
        return handler(self._with_prompt(request))

    async def awrap_model_call(self, request: ModelRequest[Any], handler: AsyncHandler) -> ModelResponse[Any]:
        if self._prompt and self._text is None:
            with _what_a_run_can_do_without():
                self._text = sandbox_prompt(await on_client(self._sandboxes.client, AsyncClient.catalogue))
        return await handler(self._with_prompt(request))

    def _with_prompt(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        if not self._text:
            return request
        return request.override(system_message=_appended(request.system_message, self._text))

    # approval

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolResult]
    ) -> ToolResult:
        if self._review is None:
            return handler(request)
        return self._review.wrap_tool_call(request, handler)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolResult]]
    ) -> ToolResult:
        if self._review is None:
            return await handler(request)
        return await self._review.awrap_tool_call(request, handler)

    # the end

    def after_agent(self, state: Any, runtime: Runtime[Any]) -> None:
        if self._delete:
            with _what_a_run_can_do_without():
                self._sandboxes.blocking_client().call(self._deletion())

    async def aafter_agent(self, state: Any, runtime: Runtime[Any]) -> None:
        if self._delete:
            with _what_a_run_can_do_without():
                await on_client(self._sandboxes.client, self._deletion())

    def _deletion(self) -> Callable[[AsyncClient], Coroutine[Any, Any, None]]:
        thread = self._sandboxes.thread_key(current_thread())

        async def delete(client: AsyncClient) -> None:
            async for session in client.sessions(thread=thread):  # asking for the thread's would make one
                await session.delete()

        return delete


@contextmanager
def _what_a_run_can_do_without() -> Iterator[None]:
    """A run is not ended by a server that is away for a moment; by a wrong key it is.

    A prompt is asked for again with the next call, and a sandbox that is not deleted ends by its timeouts.
    """
    try:
        yield
    except SandlotError as error:
        refusal(error)


def _appended(message: SystemMessage | None, text: str) -> SystemMessage:
    if message is None:
        return SystemMessage(text)
    if isinstance(message.content, str):
        return message.model_copy(update={"content": f"{message.content}\n\n{text}"})
    return message.model_copy(update={"content": [*message.content, {"type": "text", "text": text}]})

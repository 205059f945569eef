"""A chat model that says what a test has written down, so that agents run without a network."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Self

from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult


class ScriptedModel(FakeMessagesListChatModel):
    """Its messages in turn. Tools are bound to it in vain: it calls those that the script names."""

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Self:
        return self


def calls(*wanted: tuple[str, dict[str, Any]], tag: str | None = None) -> AIMessage:
    """One turn in which the model calls these tools, all at the same time. ``tag``: how their ids begin."""
    tag = tag or f"call-{secrets.token_hex(4)}"
    return AIMessage(
        content="",
        tool_calls=[
            ToolCall(name=name, args=args, id=f"{tag}-{number}") for number, (name, args) in enumerate(wanted)
        ],
    )


def script(*messages: BaseMessage | str) -> ScriptedModel:
    return ScriptedModel(
        responses=[
            AIMessage(content=message) if isinstance(message, str) else message for message in messages
        ]
    )


class ByConversation(ScriptedModel):
    """The next message is told by how many the conversation has had, not by how often the model was asked.

    So one serves many conversations at once, and another process goes on where the first one ended.
    """

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        turn = sum(isinstance(message, AIMessage) for message in messages)
        said = self.responses[turn] if turn < len(self.responses) else AIMessage(content="all done")
        return ChatResult(generations=[ChatGeneration(message=said.model_copy(deep=True))])


def by_conversation(*messages: BaseMessage | str) -> ByConversation:
    return ByConversation(responses=script(*messages).responses)


def results(state: dict[str, Any]) -> list[ToolMessage]:
    """What the tools have answered, in the order in which the model reads it."""
    return [message for message in state["messages"] if isinstance(message, ToolMessage)]


def run_of(thread: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread}}


def said(text: str) -> dict[str, Any]:
    return {"messages": [("user", text)]}


def answers(state: dict[str, Any]) -> list[ToolMessage]:
    """Of the tools, in the last turn of the user."""
    messages: list[BaseMessage] = state["messages"]
    last = max(number for number, message in enumerate(messages) if message.type == "human")
    return [message for message in messages[last:] if isinstance(message, ToolMessage)]

"""The examples' model: a scripted one that needs no key and no network, or any model that you name.

They need ``pip install '.[server,langchain]'`` and the images (``sandlot images build``).

    MODEL=anthropic:claude-sonnet-5 python examples/agents/coding_agent.py

takes that one instead, through LangChain's ``init_chat_model`` (install its package and set its key).
"""

import os
from typing import Any

from langchain.chat_models import init_chat_model
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult


class ScriptedModel(BaseChatModel):
    """Says its next line; which one that is, the conversation tells. So it can go on in any process."""

    lines: list[AIMessage]

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        said = sum(isinstance(message, AIMessage) for message in messages)
        return ChatResult(generations=[ChatGeneration(message=self.lines[said])])

    def bind_tools(self, *_: Any, **__: Any) -> "ScriptedModel":
        return self

    @property
    def _llm_type(self) -> str:
        return "scripted"


def call(tool: str, **arguments: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": tool, "args": arguments, "id": f"call-{tool}"}])


def model(*lines: AIMessage | str) -> BaseChatModel:
    if name := os.environ.get("MODEL"):
        return init_chat_model(name)
    return ScriptedModel(lines=[AIMessage(line) if isinstance(line, str) else line for line in lines])

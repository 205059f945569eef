"""``bash_node``: a command as a node of a hand-built graph."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Unpack

from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langgraph.runtime import get_runtime

from sandlot.client.async_client import AsyncClient
from sandlot.client.options import SessionOptions, check_session_options
from sandlot.client.sync.client import Client
from sandlot.domain.errors import InvalidRequest
from sandlot.integrations import toolbox
from sandlot.integrations.langchain.call import Operation, aperform, call_id, perform
from sandlot.integrations.langchain.time_travel import Step
from sandlot.integrations.sandboxes import Sandboxes
from sandlot.integrations.toolbox import Answer
from sandlot.integrations.toolbox.commands import TIMEOUT_S

_PARAMETERS: Final = (
    "client",
    "command_key",
    "result_key",
    "timeout_s",
    "environment",
    "name",
    "time_travel",
)


def bash_node(
    client: Client | AsyncClient | None = None,
    *,
    command_key: str = "command",
    result_key: str = "result",
    timeout_s: float = TIMEOUT_S,
    environment: str | None = None,
    name: str | None = None,
    time_travel: bool = False,
    **options: Unpack[SessionOptions],
) -> Runnable[Any, dict[str, Any]]:
    """A node that runs the state's command in the conversation's sandbox and stores the result.

    The result is a dictionary with ``text`` as a model would read it, ``exit_code``, ``stdout``,
    ``stderr`` and so on, or with ``error`` if no sandbox was available. A node that is repeated
    after a crash does not run its command again. Two bash nodes inside one node of the graph are
    distinguished by their keys and commands. ``time_travel``: as for ``sandbox_tools``.
    """
    check_session_options("bash_node", options, _PARAMETERS)
    sandboxes = Sandboxes(client, environment=environment, name=name, **options)

    def operation(state: Any, config: RunnableConfig) -> Operation:
        command = _command(state, command_key)
        node_call_id = call_id(config, json.dumps([command_key, result_key, _attempt()]))
        # Programs read this result, so stdout and stderr are separate.
        return lambda session: toolbox.bash(
            session, command, timeout_s=timeout_s, call_id=node_call_id, merge_output=False
        )

    def step_of(state: Any, config: RunnableConfig) -> Step | None:
        if not time_travel:
            return None
        return Step.of(sandboxes, config, state, get_runtime().execution_info)

    def run(state: Any, config: RunnableConfig) -> dict[str, Any]:
        step = step_of(state, config)
        answer = perform(sandboxes, config, operation(state, config), step)
        return _update(result_key, answer, step)

    async def arun(state: Any, config: RunnableConfig) -> dict[str, Any]:
        step = step_of(state, config)
        answer = await aperform(sandboxes, config, operation(state, config), step)
        return _update(result_key, answer, step)

    return RunnableLambda(run, arun, name="bash")


def _attempt() -> int:
    """The node's attempt. As part of the call id it lets a RetryPolicy run the command again."""
    info = get_runtime().execution_info
    return 1 if info is None else info.node_attempt


def _command(state: Any, key: str) -> str:
    command = state.get(key) if isinstance(state, Mapping) else getattr(state, key, None)
    if not isinstance(command, str) or not command:
        raise InvalidRequest(f"The state has no command under {key!r}. Set it before this node runs.")
    return command


def _update(result_key: str, answer: Answer, step: Step | None) -> dict[str, Any]:
    result = {"text": answer.text, **answer.data}
    return {result_key: result, **({} if step is None else step.update)}

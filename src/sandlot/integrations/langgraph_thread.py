"""Which conversation a call belongs to, as LangGraph tells it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langgraph.config import get_config

from sandlot.domain.errors import InvalidRequest

NO_THREAD = (
    "no thread_id: a sandbox belongs to a conversation, so the run needs one. "
    'Invoke with config={"configurable": {"thread_id": "…"}}'
)


def thread_of(config: Mapping[str, Any]) -> str:
    """Never a default: two conversations without a name must not meet in one sandbox."""
    thread = (config.get("configurable") or {}).get("thread_id")
    if thread is None or str(thread) == "":
        raise InvalidRequest(NO_THREAD)
    return str(thread)


def task_of(config: Mapping[str, Any]) -> str | None:
    """The step of a run, or None outside of one.

    A run that broke off and is resumed does the same step again; everything else is another step, even the
    same checkpoint gone through once more.
    """
    return (config.get("configurable") or {}).get("checkpoint_ns") or None


def current_task() -> str | None:
    """Of the run that this code is called by."""
    try:
        return task_of(get_config())
    except RuntimeError:
        return None


def current_thread() -> str:
    """Of the run that this code is called by: nodes, tools, subgraphs, on any thread or loop."""
    try:
        config = get_config()
    except RuntimeError:
        raise InvalidRequest(NO_THREAD) from None
    return thread_of(config)

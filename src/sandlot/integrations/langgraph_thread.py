"""Reads the current conversation and the current step from LangGraph's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langgraph.config import get_config

from sandlot.domain.errors import InvalidRequest

NO_THREAD = (
    "Missing thread_id. Each conversation has its own sandbox, so pass "
    'config={"configurable": {"thread_id": "…"}}.'
)


def thread_of(config: Mapping[str, Any]) -> str:
    """The conversation's thread id.

    There is no default: two conversations without an id must not share a sandbox.
    """
    thread = (config.get("configurable") or {}).get("thread_id")
    if thread is None or str(thread) == "":
        raise InvalidRequest(NO_THREAD)
    return str(thread)


def task_of(config: Mapping[str, Any]) -> str | None:
    """The current step of a run, or None outside a run.

    A run that is resumed after a crash repeats the same step. In all other cases the step is
    different, even if the run starts again from the same checkpoint.
    """
    return (config.get("configurable") or {}).get("checkpoint_ns") or None


def current_task() -> str | None:
    """The current step of the run that calls this code, or None outside a run."""
    try:
        return task_of(get_config())
    except RuntimeError:
        return None


def current_thread() -> str:
    """The thread id of the run whose node, tool or subgraph calls this, on any thread or loop."""
    try:
        config = get_config()
    except RuntimeError:
        raise InvalidRequest(NO_THREAD) from None
    return thread_of(config)

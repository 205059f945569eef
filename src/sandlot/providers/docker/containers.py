"""Converts the engine's JSON about a container into this project's values. Pure."""

from __future__ import annotations

from typing import Any

from sandlot.domain.environment import Tier
from sandlot.providers.base import FoundSandbox, Stats
from sandlot.providers.docker.spec import (
    LABEL_CALLER,
    LABEL_ENVIRONMENT,
    LABEL_SANDBOX,
    LABEL_TIER,
)

LIVE_STATES = ("running", "paused")


def parse_sandbox(container: dict[str, Any]) -> FoundSandbox:
    labels = container["Labels"]
    return FoundSandbox(
        id=labels[LABEL_SANDBOX],
        state=container["State"],
        environment=labels.get(LABEL_ENVIRONMENT, ""),
        tier=Tier(labels.get(LABEL_TIER, Tier.RUNC)),
        created_at=float(container["Created"]),
        labels={
            name.removeprefix(LABEL_CALLER): value
            for name, value in labels.items()
            if name.startswith(LABEL_CALLER)
        },
    )


def end_reason(state: dict[str, Any]) -> str:
    if state.get("OOMKilled"):
        return "the sandbox's container ran out of memory"
    return f"the sandbox's container is {state['Status']}, exit code {state.get('ExitCode')}"


def parse_stats(sample: dict[str, Any]) -> Stats:
    memory = sample.get("memory_stats") or {}
    details = memory.get("stats") or {}
    # The kernel frees cached file content under pressure. Like `docker stats`, leave it out.
    cached = details.get("total_inactive_file", details.get("inactive_file", 0))
    return Stats(
        memory_bytes=max(0, int(memory.get("usage", 0)) - int(cached)),
        cpu_ns=int(((sample.get("cpu_stats") or {}).get("cpu_usage") or {}).get("total_usage", 0)),
        pids=int((sample.get("pids_stats") or {}).get("current", 0)),
    )

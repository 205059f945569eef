"""What a sandbox is made with, and what finds it again; both are JSON for the framework to keep."""

from __future__ import annotations

from typing import Literal

from agents.sandbox.session import BaseSandboxClientOptions, SandboxSessionState


class SandlotSandboxClientOptions(BaseSandboxClientOptions):
    """Seconds where not set are as the server's environment says."""

    type: Literal["sandlot"] = "sandlot"
    environment: str | None = None
    idle_timeout_s: float | None = None
    lifetime_s: float | None = None


class SandlotSandboxSessionState(SandboxSessionState):
    type: Literal["sandlot"] = "sandlot"
    sandlot_session: str
    options: SandlotSandboxClientOptions = SandlotSandboxClientOptions()


def ours(state: SandboxSessionState) -> SandlotSandboxSessionState:
    if not isinstance(state, SandlotSandboxSessionState):
        raise TypeError(f"the state of a sandlot session is needed, not of {state.type!r}")
    return state

"""A sandbox's options, and the state that finds it again. The framework stores both as JSON."""

from __future__ import annotations

from typing import Literal

from agents.sandbox.session import BaseSandboxClientOptions, SandboxSessionState


class SandlotSandboxClientOptions(BaseSandboxClientOptions):
    """Options of a new sandbox. Timeouts default to those of the server's environment."""

    type: Literal["sandlot"] = "sandlot"
    environment: str | None = None
    idle_timeout_s: float | None = None
    lifetime_s: float | None = None


class SandlotSandboxSessionState(SandboxSessionState):
    type: Literal["sandlot"] = "sandlot"
    sandlot_session: str
    options: SandlotSandboxClientOptions = SandlotSandboxClientOptions()


def sandlot_state(state: SandboxSessionState) -> SandlotSandboxSessionState:
    if not isinstance(state, SandlotSandboxSessionState):
        raise TypeError(f"Expected the state of a Sandlot session, not of {state.type!r}.")
    return state

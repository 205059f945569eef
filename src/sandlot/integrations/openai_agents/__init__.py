"""OpenAI Agents: sandboxes for its ``SandboxAgent``.

    run = RunConfig(sandbox=SandboxRunConfig(client=SandlotSandboxClient()))
    await Runner.run(SandboxAgent(name="coder", model=…), "…", run_config=run)

A session's state, serialised, finds the same sandbox from any process. One that is gone is replaced only
where the state has a snapshot to fill the new one from; otherwise resuming it is an error. One that lives but
has changed since its snapshot is set back to it when it starts again: that is the framework's rule for all.
Sandboxes have one user and no terminals here: ``run_as``, a manifest's users and interactive commands are
refused.
"""

from sandlot.integrations.openai_agents.client import SandlotSandboxClient
from sandlot.integrations.openai_agents.session import SandlotSandboxSession
from sandlot.integrations.openai_agents.state import SandlotSandboxClientOptions, SandlotSandboxSessionState

__all__ = [
    "SandlotSandboxClient",
    "SandlotSandboxClientOptions",
    "SandlotSandboxSession",
    "SandlotSandboxSessionState",
]

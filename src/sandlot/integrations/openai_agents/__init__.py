"""OpenAI Agents: sandboxes for the framework's ``SandboxAgent``.

    run = RunConfig(sandbox=SandboxRunConfig(client=SandlotSandboxClient()))
    await Runner.run(SandboxAgent(name="coder", model=…), "…", run_config=run)

Any process can find a sandbox again from the serialised state of its session. A sandbox that is
gone is replaced only if the state has a snapshot to restore; otherwise resuming raises an error. A
running sandbox that has changed since its snapshot is reset to the snapshot when it starts again:
the framework does this for every kind of sandbox. Sandlot's sandboxes have one user and no
terminals, so ``run_as``, a manifest's users and interactive commands are refused.
"""

from sandlot.integrations.openai_agents.client import SandlotSandboxClient
from sandlot.integrations.openai_agents.python_tool import python_tool
from sandlot.integrations.openai_agents.session import SandlotSandboxSession
from sandlot.integrations.openai_agents.state import SandlotSandboxClientOptions, SandlotSandboxSessionState

__all__ = [
    "SandlotSandboxClient",
    "SandlotSandboxClientOptions",
    "SandlotSandboxSession",
    "SandlotSandboxSessionState",
    "python_tool",
]

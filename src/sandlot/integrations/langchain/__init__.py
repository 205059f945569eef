"""LangChain and LangGraph: tools, middleware for ``create_agent``, a graph node, a shell policy."""

from sandlot.integrations.langchain.approval import ApprovalPolicy
from sandlot.integrations.langchain.middleware import SandboxMiddleware
from sandlot.integrations.langchain.network_approval import NetworkApproval
from sandlot.integrations.langchain.nodes import bash_node
from sandlot.integrations.langchain.shell_policy import SandlotShellPolicy
from sandlot.integrations.langchain.time_travel import SandboxState, snapshot_of
from sandlot.integrations.langchain.tools import sandbox_tools

__all__ = [
    "ApprovalPolicy",
    "NetworkApproval",
    "SandboxMiddleware",
    "SandboxState",
    "SandlotShellPolicy",
    "bash_node",
    "sandbox_tools",
    "snapshot_of",
]

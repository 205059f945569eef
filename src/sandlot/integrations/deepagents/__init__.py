"""Deep Agents: a backend for its file and shell tools, and a sandbox provider for dcode."""

from sandlot.integrations.deepagents.backend import SandlotBackend

__all__ = ["SandlotBackend"]

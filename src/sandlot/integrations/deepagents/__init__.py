"""Deep Agents: the backend that its file and shell tools work on, and the provider that dcode finds."""

from sandlot.integrations.deepagents.backend import SandlotBackend

__all__ = ["SandlotBackend"]

"""The pages about agents are tried against the same kind of server as the adapters themselves."""

from tests.integrations.conftest import agent_server

__all__ = ["agent_server"]

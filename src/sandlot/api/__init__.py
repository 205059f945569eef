"""The HTTP API: ``create_app`` serves any ``SandboxService``, and knows nothing of what is behind it."""

from sandlot.api.app import create_app

__all__ = ["create_app"]

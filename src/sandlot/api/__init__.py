"""The HTTP API: ``create_app`` serves any ``SandboxService``, whatever its implementation."""

from sandlot.api.app import create_app

__all__ = ["create_app"]

"""The attacks run on each tier, against a real engine."""

from __future__ import annotations

from tests.docker.conftest import harness

__all__ = ["harness"]

from __future__ import annotations

from tests.unit.worker.conftest import data_dir, engine, scene

__all__ = ["data_dir", "engine", "scene"]

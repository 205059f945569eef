from tests.faults.conftest import slim_registry

__all__ = ["slim_registry"]

"""The service in memory, for tests. See ``FakeSandlot`` and ``FakeService``."""

from sandlot.testing.fake.sandlot import FakeSandlot
from sandlot.testing.fake.scripts import Call, Invocation, Reply
from sandlot.testing.fake.service import FakeService

__all__ = ["Call", "FakeSandlot", "FakeService", "Invocation", "Reply"]

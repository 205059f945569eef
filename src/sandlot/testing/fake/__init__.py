"""The service in memory, for tests. See ``FakeSandlot`` and ``FakeService``."""

from sandlot.testing.fake.code.cells import CellCall, CellReply
from sandlot.testing.fake.sandlot import FakeSandlot
from sandlot.testing.fake.scripts import Call, Invocation, Reply
from sandlot.testing.fake.service import FakeService
from sandlot.testing.fake.workspaces.store import FakeStore

__all__ = ["Call", "CellCall", "CellReply", "FakeSandlot", "FakeService", "FakeStore", "Invocation", "Reply"]

"""Test support that ships with the package: a fake, and a conformance suite for every contract.

The fake needs neither pytest nor Docker. Import the suites by name: ``service_suite``,
``provider_suite``, ``directory_suite``. ``README.md`` says what the fake's shell knows and refuses.
"""

from sandlot.testing.fake import (
    Call,
    CellCall,
    CellReply,
    FakeSandlot,
    FakeService,
    FakeStore,
    Invocation,
    Reply,
)

__all__ = ["Call", "CellCall", "CellReply", "FakeSandlot", "FakeService", "FakeStore", "Invocation", "Reply"]

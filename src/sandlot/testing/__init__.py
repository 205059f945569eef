"""What is shipped for tests: a fake of everything, and the suites that every implementation of a contract must pass.

The fake needs neither pytest nor Docker; the suites (``provider_suite``, ``service_suite``) are imported by name.
"""

from sandlot.testing.fake import Call, FakeSandlot, FakeService, Invocation, Reply

__all__ = ["Call", "FakeSandlot", "FakeService", "Invocation", "Reply"]

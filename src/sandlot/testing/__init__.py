"""What is shipped for tests: conformance suites that every implementation of a contract must pass."""

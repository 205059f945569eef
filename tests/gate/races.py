"""The few tests of a gate that get a second try, alone.

On two cores, which the machine's host gives to others now and then, one of ten thousand tests waits in vain. That
says nothing of a change. So a gate runs such a test once more, by itself, and names it at its end. `make check-all`
gives no second try.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import leaks

MOST = 3  # more of them are no accident


class Races:
    """Notes what failed, one name a line. Nothing that is left behind gets a second try, and no crash."""

    def __init__(self, noted_in: Path) -> None:
        self._noted_in = noted_in
        self._failed: dict[str, None] = {}
        self._hopeless = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = None
            self._hopeless |= report.when not in ("setup", "call")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._hopeless |= report.failed

    def pytest_terminal_summary(self, config: pytest.Config) -> None:
        hopeless = self._hopeless or bool(config.stash.get(leaks.LEFT, None))
        names = [] if hopeless or len(self._failed) > MOST else [*self._failed]
        self._noted_in.write_text("".join(f"{name}\n" for name in names))

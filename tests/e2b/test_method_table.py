"""The table of the SDK's methods has exactly those that the installed SDK has, and says of each whether it works.

That programs call what works is asserted where they run: ``method_table.CALLED_BY``.
"""

from __future__ import annotations

from tests.e2b.clients import ROOT
from tests.e2b.method_table import CALLED_BY, installed, table


def test_the_table_has_the_methods_of_the_installed_sdk() -> None:
    names = {title: set().union(*flavours.values()) for title, flavours in installed().items()}
    assert {title: set(rows) for title, rows in table().items()} == names


def test_what_works_partly_says_what_does_not() -> None:
    silent = [
        f"{title} {name}"
        for title, rows in table().items()
        for name, (works, why) in rows.items()
        if works == "partly" and not why
    ]
    assert silent == []


def test_each_class_with_methods_that_work_has_programs_that_call_them() -> None:
    works = {title for title, rows in table().items() if {works for works, _ in rows.values()} != {"no"}}
    assert {title for titles in CALLED_BY.values() for title in titles} == works
    for path in CALLED_BY:
        assert "assert_all_called(__file__" in (ROOT / path).read_text()

"""A plot and a table by E2B's code interpreter SDK: with an image of the tests, and with the shipped image ``code``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.code.conftest import declare, environment
from tests.code.plots import PLOT, TABLE, assert_shows_the_plot, assert_shows_the_table, plots_image
from tests.docker.shipped import build_image
from tests.e2b.clients import NEWEST, Found, checks_in, run
from tests.e2b.conftest import E2B_KEY, SERVER_KEY
from tests.faults.rig import ServerProcess

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]

PROGRAM = "code/plot_calls.py"
FORMS = ("sync", "async")


@dataclass
class Shown:
    """``folder``: the plot and the table, as files."""

    found: Found
    folder: Path


@pytest.fixture(scope="module", params=["plots", pytest.param("code", marks=pytest.mark.images)])
def shown(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Shown]]:
    image = plots_image() if request.param == "plots" else build_image(request.param)
    registry = declare(
        tmp_path_factory.mktemp("registry"),
        environment("base", image="sandlot/base"),
        environment("code", image=image),
    )
    server = ServerProcess(api_key=SERVER_KEY, registry=registry, queue_timeout_s="200")

    def ran(form: str) -> Shown:
        folder = tmp_path_factory.mktemp(form)
        found = run(NEWEST, PROGRAM, server.url, E2B_KEY, form, str(folder), PLOT, TABLE)
        return Shown(found, folder)

    try:
        asyncio.run(server.start())
        yield {form: ran(form) for form in FORMS}
    finally:
        asyncio.run(server.clean())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("check", checks_in(PROGRAM))
def test_plots(shown: dict[str, Shown], form: str, check: str) -> None:
    shown[form].found.assert_passed(check)


@pytest.mark.parametrize("form", FORMS)
def test_the_plot_shows_its_line_and_the_table_its_rows(shown: dict[str, Shown], form: str) -> None:
    folder = shown[form].folder
    assert_shows_the_plot((folder / "plot.png").read_bytes())
    assert_shows_the_table((folder / "table.html").read_text(), (folder / "table.txt").read_text())

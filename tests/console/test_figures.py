"""``bench.console`` in its short form, at twice the bars: half as strict, because it shares its machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from bench.console.__main__ import bars, measure, parser

from sandlot.api.console.files import DIST, INDEX
from tests.measuring import best_of_three
from tests.service.browsing import chromium_path

pytestmark = [pytest.mark.docker, pytest.mark.alone, pytest.mark.slow, pytest.mark.timeout(600)]

LENIENCY = 2.0


def _meets(figures: Mapping[str, Any]) -> bool:
    return all(bar.held for bar in bars(dict(figures), LENIENCY))


@pytest.mark.parametrize("part", ["flood", "pages"])
async def test_the_console_keeps_its_bars(part: str) -> None:
    chromium_path()  # skips where there is none
    if not (DIST / INDEX).is_file():
        pytest.skip("the console is not built (make console)")
    arguments = parser().parse_args(["--parts", part, "--keys", "40", "--rounds", "20"])
    figures = await best_of_three(lambda: measure(arguments), _meets)
    assert set(figures) == ({"key_ms"} if part == "flood" else {"server_ms", "paint_ms"})

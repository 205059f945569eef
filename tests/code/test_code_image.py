"""The shipped image ``code``: plots, tables, and each of its languages, on both tiers."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sandlot.domain.code.contexts import Cell
from sandlot.domain.code.events import CellData
from sandlot.domain.execution import ExecRequest
from sandlot.wiring import LocalWorker
from tests.code.conftest import environment, new_session, run, value, worker_with
from tests.code.plots import (
    PLOT,
    TABLE,
    assert_charts_and_tables,
    assert_shows_the_plot,
    assert_shows_the_table,
)
from tests.docker.shipped import build_image

pytestmark = [
    pytest.mark.docker,
    pytest.mark.images,
    pytest.mark.timeout(900),
    pytest.mark.asyncio(loop_scope="session"),
]

ENVIRONMENTS = {
    tier: environment(f"code-{tier}", image="sandlot/code", tier=tier) for tier in ("runc", "runsc")
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def code_service() -> AsyncIterator[LocalWorker]:
    await asyncio.to_thread(build_image, "code")
    async with worker_with(*ENVIRONMENTS.values()) as service:
        yield service


@pytest_asyncio.fixture(params=["runc", "runsc"], scope="module", loop_scope="session")
async def code(request: pytest.FixtureRequest, code_service: LocalWorker) -> AsyncIterator[str]:
    async with new_session(code_service, f"code-{request.param}") as session_id:
        yield session_id


async def test_a_plot_is_a_picture(code_service: LocalWorker, code: str) -> None:
    ran = await run(code_service, code, PLOT, timeout_s=120)
    assert ran.result.exit_code == 0, ran.events
    (shown,) = ran.of(CellData)
    assert_shows_the_plot(base64.b64decode(shown.data["image/png"]))


async def test_a_table_is_html(code_service: LocalWorker, code: str) -> None:
    ran = await run(code_service, code, TABLE, timeout_s=120)
    (shown,) = ran.of(CellData)
    assert shown.main
    assert_shows_the_table(shown.data["text/html"], shown.data["text/plain"])


async def test_charts_and_tables_are_data_too(code_service: LocalWorker, code: str) -> None:
    """With Debian's Matplotlib and pandas, which are older than those of ``test_plots.py``."""
    await assert_charts_and_tables(code_service, code)


@pytest.mark.parametrize(
    ("context", "first", "second", "expected"),
    [
        ("javascript", "let total = 40; console.log('hi')", "total + 2", "42"),
        (
            "typescript",
            "interface P { n: number }; const p: P = { n: 41 }; console.log('hi')",
            "p.n + 1",
            "42",
        ),
        ("r", "total <- 40; cat('hi\\n')", "total + 2", "[1] 42"),
    ],
)
async def test_a_language_keeps_its_variables(
    code_service: LocalWorker, code: str, context: str, first: str, second: str, expected: str
) -> None:
    assert (await run(code_service, code, first, context, timeout_s=90)).text == "hi\n"
    assert (await value(code_service, code, second, context)).strip() == expected
    failed = await run(code_service, code, "nowhere", context)
    assert failed.result.exit_code == 1
    assert "nowhere" in failed.error.value
    assert (await value(code_service, code, second, context)).strip() == expected


async def test_bash(code_service: LocalWorker, code: str) -> None:
    await run(code_service, code, "total=42", "bash")
    assert (await run(code_service, code, "echo $total", "bash")).text == "42\n"


async def test_no_value_of_javascript_is_lost(code_service: LocalWorker, code: str) -> None:
    """Deno says that a cell has ended before its value and its last text have gone out."""
    for number in range(100):
        ran = await run(code_service, code, f"console.log('n', {number}); {number} + 1", "javascript")
        assert (ran.text, ran.of(CellData)[0].data["text/plain"]) == (f"n {number}\n", str(number + 1))
    count = (await run(code_service, code, "let silent = 1", "javascript")).of(CellData)
    assert count == []


async def test_variables_of_a_cell_in_every_language(code_service: LocalWorker, code: str) -> None:
    for context, read in (
        ("javascript", "console.log(Deno.env.get('OWN') ?? 'none')"),
        ("r", "cat(Sys.getenv('OWN', 'none'), '\\n', sep='')"),
    ):
        assert (await run(code_service, code, read, context, env={"OWN": "a 'b' \"c\""})).text == (
            "a 'b' \"c\"\n"
        )
        assert (await run(code_service, code, read, context)).text == "none\n"


@pytest.mark.parametrize(
    ("context", "endless", "kept", "read"),
    [
        ("javascript", "while (true) {}", "let kept = 7", "console.log(kept)"),
        ("r", "while (TRUE) {}", "kept <- 7", "cat(kept, '\\n', sep='')"),
        ("bash", "while :; do :; done", "kept=7", "echo $kept"),
    ],
)
async def test_an_endless_cell_is_interrupted(
    code_service: LocalWorker, code: str, context: str, endless: str, kept: str, read: str
) -> None:
    await run(code_service, code, kept, context)
    execution = await code_service.start_exec(code, ExecRequest(cell=Cell(endless, context)))
    await asyncio.sleep(1)  # none of them can say that it has begun before it is interrupted
    began = time.monotonic()
    await code_service.interrupt_context(code, context)
    assert (await execution.result()).exit_code == 1
    assert time.monotonic() - began < 2
    assert (await run(code_service, code, read, context)).text == "7\n"
